/** The client against a real server, whose address is in TARRY_URL. */

import assert from "node:assert/strict";
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { after, before, test } from "node:test";

import { Client, TarryError, Unreachable } from "../src/index.js";

const url = process.env["TARRY_URL"] ?? "";
const client = new Client({ url });
const text = (bytes: Uint8Array): string => new TextDecoder().decode(bytes);
const unique = (name: string): string => `${name}-${crypto.randomUUID()}`;

before(() => assert.notEqual(url, "", "TARRY_URL names the server to test with"));

test("a message arrives when it is due, and not before", async () => {
  const topic = unique("due");
  await client.subscribe(topic, "me", { start: "earliest" });
  const asked = Date.now();
  const { id, due_at_ms: due } = await client.schedule(topic, { order: 17 }, { delay: 300, headers: { a: "b" }, key: "k" });
  assert.ok(due !== null && due >= asked + 300);
  assert.equal((await client.get(id)).state, "scheduled");
  const [entry] = await client.receive(topic, "me", { waitMs: 10_000 });
  assert.ok(entry && Date.now() >= due);
  assert.deepEqual(JSON.parse(text(entry.bytes)), { order: 17 });
  assert.deepEqual([entry.headers["a"], entry.key, entry.due_at_ms], ["b", "k", due]);
  await client.ack(topic, "me", [entry.entry_id]);
  assert.equal((await client.get(id)).state, "sent");
});

test("payloads come back byte for byte", async () => {
  const topic = unique("payloads");
  await client.subscribe(topic, "me", { start: "earliest" });
  const large = Uint8Array.from({ length: 100_000 }, (_, at) => (at * 7) & 255);
  for (const payload of [large, new Uint8Array(), "Grüße, 世界", ""]) await client.publish(topic, payload);
  const entries = await client.receive(topic, "me");
  assert.deepEqual(entries[0]?.bytes, large);
  assert.deepEqual(entries.slice(1).map((entry) => text(entry.bytes)), ["", "Grüße, 世界", ""]);
});

test("a message is cancelled, restarted and sent by its id", async () => {
  const topic = unique("commands");
  await client.subscribe(topic, "me", { start: "earliest" });
  const later = new Date(Date.now() + 3_600_000);
  const one = await client.schedule(topic, "one", { dueAt: later, owner: topic });
  assert.equal(one.due_at_ms, later.getTime());
  const moved = await client.restart(one.id, { delay: "2h" });
  assert.ok((moved.due_at_ms ?? 0) > later.getTime());
  assert.equal((await client.cancel(one.id)).state, "cancelled");
  const two = await client.schedule(topic, "two", { delay: "1h", owner: topic });
  const listed: string[] = [];
  for await (const message of client.list({ owner: topic, limit: 1 })) listed.push(message.id);
  assert.deepEqual(listed, [two.id]);
  await client.send(two.id);
  const entries = await client.receive(topic, "me", { waitMs: 10_000 });
  assert.deepEqual(entries.map((entry) => text(entry.bytes)), ["two"]);
});

test("a message is found and commanded by a name of its own", async () => {
  const topic = unique("names");
  const which = { name: `trial-${topic}` };
  const { id } = await client.schedule(topic, "first", { delay: "1h", ...which });
  await assert.rejects(client.schedule(topic, "second", { delay: "1h", ...which }), TarryError);
  const replaced = await client.schedule(topic, "third", { delay: "1h", onConflict: "replace", ...which });
  assert.notEqual(replaced.id, id);
  assert.equal(text((await client.get(which)).bytes), "third");
  assert.equal((await client.pause(which)).paused, "message");
  assert.equal((await client.resume(which)).paused, null);
  const moved = await client.restart(which, { delay: "2h" });
  assert.deepEqual([moved.id, moved.delay_ms], [replaced.id, 7_200_000]);
  assert.equal((await client.cancel(which)).state, "cancelled");
  await assert.rejects(client.send({ ...which, namespace: "public/other" }), (error: TarryError) => error.status === 404);
  await assert.rejects(client.get({ name: "x", namespace: "public" }), TypeError);
});

test("a message that failed is retried", async () => {
  const { id } = await client.schedule("http://127.0.0.1:1/nobody", "x", { delay: 1 });
  while ((await client.get(id)).state !== "failed") await new Promise((resolve) => setTimeout(resolve, 50));
  const again = await client.retry(id, { delay: "1h" });
  assert.equal(again.state, "scheduled");
  assert.ok((again.due_at_ms ?? 0) > Date.now() + 3_000_000);
});

test("a refusal says which rule was broken", async () => {
  const refused = async (call: Promise<unknown>, status: number, code: string): Promise<TarryError> => {
    const error = await call.then(() => assert.fail("it was accepted"), (raised: unknown) => raised);
    assert.ok(error instanceof TarryError);
    assert.deepEqual([error.status, error.code], [status, code]);
    return error;
  };
  const wrong = await refused(client.schedule("t", "x", { delay: "never" }), 400, "invalid");
  assert.equal(wrong.field, "delay");
  await refused(client.get("f".repeat(32)), 404, "not-found");
  const { id } = await client.schedule(unique("t"), "x", { delay: "1h" });
  await client.cancel(id);
  const again = await refused(client.restart(id, { delay: "1h" }), 409, "conflict");
  assert.equal(again.problem.state, "cancelled");
  await assert.rejects(client.publish("a/b", "x"), TypeError);
});

test("one idempotency key schedules once", async () => {
  const options = { delay: "1h", idempotencyKey: unique("key") };
  const first = await client.schedule("repeats", "x", options);
  assert.equal((await client.schedule("repeats", "x", options)).id, first.id);
});

test("an entry whose handler fails comes again, and one that is handled does not", async () => {
  const topic = unique("consume");
  await client.subscribe(topic, "me", { start: "earliest" });
  for (const payload of ["a", "b", "c"]) await client.publish(topic, payload);
  const seen: string[] = [];
  const failing = client.consume(topic, "me", (entry) => {
    seen.push(text(entry.bytes));
    if (text(entry.bytes) === "b") throw new Error("not today");
  });
  await assert.rejects(failing, /not today/);
  assert.deepEqual(seen, ["a", "b"]);
  const stop = new AbortController();
  await client.consume(
    topic,
    "me",
    async (entry) => {
      seen.push(text(entry.bytes));
      if (seen.length === 4) stop.abort();
    },
    { signal: stop.signal },
  );
  assert.deepEqual(seen, ["a", "b", "b", "c"]);
});

test("a wait ends when its signal says", async () => {
  const topic = unique("abort");
  await client.subscribe(topic, "me");
  const waiting = client.receive(topic, "me", { waitMs: 20_000, signal: AbortSignal.timeout(100) });
  await assert.rejects(waiting);
  await client.consume(topic, "me", () => undefined, { signal: AbortSignal.timeout(100) });
});

/** The address of a proxy that breaks the connection in place of the first answers. */
async function breaking(answersLost: number): Promise<string> {
  const target = new URL(url);
  const open = new Set<Socket>();
  let lost = 0;
  const server = createServer((near) => {
    const far = connect(Number(target.port), target.hostname);
    const close = (): void => [near, far].forEach((socket) => (open.delete(socket), socket.destroy()));
    for (const socket of [near, far]) open.add(socket.on("error", close).on("close", close));
    near.on("data", (data: Buffer) => far.write(data));
    far.on("data", (data: Buffer) => {
      if (lost++ < answersLost) close();
      else near.write(data);
    });
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  after(() => {
    server.close();
    open.forEach((socket) => socket.destroy());
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test("an answer that is lost schedules nothing twice", async () => {
  const address = await breaking(2);
  const owner = unique("lost");
  await new Client({ url: address }).schedule("lost", "x", { delay: "1h", owner });
  const listed: string[] = [];
  for await (const message of client.list({ owner })) listed.push(message.id);
  assert.equal(listed.length, 1);
});

test("a server that never answers is unreachable after a while", async () => {
  const address = await breaking(1_000);
  const impatient = new Client({ url: address, retryForMs: 200 });
  await assert.rejects(impatient.get("f".repeat(32)), Unreachable);
  // What may have been done is not tried again.
  await assert.rejects(impatient.cancel("f".repeat(32)), Unreachable);
});
