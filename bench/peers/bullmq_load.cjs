// The load for BullMQ: node bullmq_load.cjs MODULES PORT single|batched|burst|callers|work SIZE WIDTH PAYLOAD_BYTES
// Prints one JSON object. SIZE is seconds, or the number of jobs of a burst or a work; WIDTH how many at once.
const [modules, port, what, size, width, payloadBytes] = process.argv.slice(2);
const { Queue, Worker } = require(require.resolve('bullmq', { paths: [modules] }));

const connection = { host: '127.0.0.1', port: Number(port), maxRetriesPerRequest: null };
const data = { payload: 'x'.repeat(Number(payloadBytes)) };
const HOUR_MS = 3600 * 1000;
const now = () => performance.timeOrigin + performance.now();

async function load(queue, add, each) {
  const began = now();
  const until = began + Number(size) * 1000;
  let count = 0;
  const lane = async () => {
    while (now() < until) {
      await add(queue);
      count += each;
    }
  };
  await Promise.all(Array.from({ length: each === 1 ? Number(width) : 4 }, lane));
  return { per_s: (count * 1000) / (now() - began) };
}

async function burst(queue) {
  const count = Number(size);
  const due = Date.now() + 2000 + count / 5;
  for (let first = 0; first < count; first += 256) {
    const some = Math.min(256, count - first);
    // A delay counts from the job's own timestamp: with both given, all are due at one instant.
    const timestamp = Date.now();
    const options = { timestamp, delay: due - timestamp, removeOnComplete: true };
    await queue.addBulk(Array.from({ length: some }, () => ({ name: 'b', data, opts: options })));
  }
  const late = [];
  await new Promise((resolve) => {
    const work = async () => {
      late.push(now() - due);
      if (late.length === count) resolve();
    };
    new Worker('burst', work, { connection, concurrency: Number(width) });
  });
  late.sort((a, b) => a - b);
  const at = (share) => late[Math.min(count - 1, Math.floor(share * count))];
  return { p50: at(0.5), p99: at(0.99), worst: late[count - 1], early: late.filter((l) => l < 0).length };
}

// Each caller's latency, and after a warm-up.
async function callers(queue, add) {
  await add(queue);
  const begins = now() + 400;
  const ends = begins + Number(size) * 1000;
  const took = [];
  let last = begins;
  const lane = async () => {
    let began = now();
    while (began < ends) {
      await add(queue);
      const ended = now();
      if (began >= begins) {
        took.push(ended - began);
        last = ended;
      }
      began = ended;
    }
  };
  await Promise.all(Array.from({ length: Number(width) }, lane));
  took.sort((a, b) => a - b);
  const at = (share) => took[Math.floor(share * (took.length - 1))];
  return { per_s: (took.length * 1000) / (last - begins), p50: at(0.5), p99: at(0.99) };
}

// Jobs that are there, handled by a function that does nothing; from the first to the last.
async function work(queue) {
  const count = Number(size);
  const options = { removeOnComplete: true };
  for (let first = 0; first < count; first += 256) {
    const some = Math.min(256, count - first);
    await queue.addBulk(Array.from({ length: some }, () => ({ name: 'w', data, opts: options })));
  }
  let seen = 0;
  let began = 0;
  return new Promise((resolve) => {
    const handle = async () => {
      if (seen === 0) began = now();
      seen += 1;
      if (seen === count) resolve({ per_s: ((count - 1) * 1000) / (now() - began) });
    };
    new Worker('work', handle, { connection, concurrency: Number(width) });
  });
}

async function main() {
  const queue = new Queue(what, { connection });
  await queue.waitUntilReady();
  const delayed = { delay: HOUR_MS };
  const one = () => queue.add('a', data, delayed);
  const bulk = Array.from({ length: Number(width) }, () => ({ name: 'a', data, opts: delayed }));
  let found;
  if (what === 'single') found = await load(queue, one, 1);
  else if (what === 'callers') found = await callers(queue, one);
  else if (what === 'work') found = await work(queue);
  else if (what === 'batched') found = await load(queue, () => queue.addBulk(bulk), Number(width));
  else found = await burst(queue);
  console.log(JSON.stringify(found));
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
