// What matrix-js-sdk does about delayed events, as cases. Arguments: the folder with node_modules, JSON with {url, room_id,
// user_id, access_token, device_id}, and a regular expression of the cases to run. Each line of output is one case as JSON.
import assert from "node:assert/strict";
import path from "node:path";
import { pathToFileURL } from "node:url";

// The library wants a newer node for this one function of the language, and talks a lot.
Promise.withResolvers ??= function () {
    let resolve, reject;
    const promise = new Promise((...both) => ([resolve, reject] = both));
    return { promise, resolve, reject };
};
for (const level of ["log", "info", "debug", "warn", "trace"]) console[level] = () => {};

const [modules, given, only] = [process.argv[2], JSON.parse(process.argv[3]), new RegExp(process.argv[4] ?? "")];
const library = (name) => import(pathToFileURL(path.join(modules, "node_modules/matrix-js-sdk/lib", name)).href);
const sdk = await library("index.js");
const client = sdk.createClient({
    baseUrl: given.url, userId: given.user_id, accessToken: given.access_token, deviceId: given.device_id,
});
const room = given.room_id;
const HOUR = 3600000;
const STATE = "org.example.state";
const MEMBER = "org.matrix.msc3401.call.member";

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const text = (body) => ({ msgtype: "m.text", body });
const later = (body, delay, txn) => client._unstable_sendDelayedEvent(room, { delay }, null, "m.room.message", text(body), txn);
const laterState = (key, delay, content) => client._unstable_sendDelayedStateEvent(room, { delay }, STATE, content, key);
const scheduled = async () => (await client._unstable_getDelayedEvents("scheduled")).scheduled;
const finalised = async () => (await client._unstable_getDelayedEvents("finalised")).finalised;

async function until(look, withinMs = 60000) {
    const end = Date.now() + withinMs;
    for (;;) {
        const found = await look();
        if (found) return found;
        assert.ok(Date.now() < end, "it never came to be");
        await pause(50);
    }
}
const bodies = async () => {
    const { chunk } = await client.createMessagesRequest(room, null, 100, "b");
    return chunk.map((event) => event.content.body);
};
const state = (key) => client.getStateEvent(room, STATE, key).catch(() => undefined);
const refusal = (promise) => promise.then(() => assert.fail("it was not refused"), (error) => error);

// A call that the real MatrixRTC session joins.
async function join(delay, restart) {
    client.startClient({ initialSyncLimit: 10 });
    await until(() => client.getRoom(room));
    const session = sdk.MatrixRTCSession ?? (await library("matrixrtc/index.js")).MatrixRTCSession;
    const call = session.sessionForSlot(client, client.getRoom(room), { id: "", application: "m.call" });
    const errors = [];
    call.on("membership_manager_error", (error) => errors.push(String(error)));
    const transport = { type: "livekit", livekit_service_url: "https://sfu.invalid" };
    const identity = { userId: given.user_id, deviceId: given.device_id, memberId: `${given.user_id}:${given.device_id}` };
    call.joinRTCSession(identity, [transport], undefined, {
        delayedLeaveEventDelayMs: delay, delayedLeaveEventRestartMs: restart,
    });
    await until(() => call.membershipStatus === "Connected");
    return { call, errors };
}

const cases = {
    "the server says that it has delayed events": async () => {
        assert.equal(await client.doesServerSupportUnstableFeature("org.matrix.msc4140"), true);
    },
    "a delayed message arrives after its delay": async () => {
        const { delay_id } = await later("timed", 300);
        assert.ok(delay_id);
        assert.ok(!(await bodies()).includes("timed"));
        await until(async () => (await bodies()).includes("timed"));
        const [entry] = await until(async () => (await finalised()).filter((one) => one.delayed_event.delay_id === delay_id));
        assert.deepEqual([entry.outcome, entry.reason], ["send", "delay"]);
    },
    "a delayed state event arrives after its delay": async () => {
        await laterState("timed", 300, { n: 1 });
        assert.equal(await state("timed"), undefined);
        await until(async () => (await state("timed"))?.n === 1);
    },
    "a state event without a key is delayed": async () => {
        const { delay_id } = await laterState(undefined, HOUR, { n: 2 });
        const [listed] = (await scheduled()).filter((one) => one.delay_id === delay_id);
        assert.equal(listed.state_key, "");
        await client._unstable_cancelScheduledDelayedEvent(delay_id);
    },
    "a transaction id that is used again gives the same delay id": async () => {
        const [first, again] = [await later("twice", HOUR, "txn-twice"), await later("twice", HOUR, "txn-twice")];
        assert.equal(first.delay_id, again.delay_id);
        await client._unstable_cancelScheduledDelayedEvent(first.delay_id);
    },
    "send answers when the event is in the room, and again": async () => {
        const { delay_id } = await later("sent", HOUR);
        assert.deepEqual(await client._unstable_sendScheduledDelayedEvent(delay_id), {});
        assert.ok((await bodies()).includes("sent"));
        assert.deepEqual(await client._unstable_sendScheduledDelayedEvent(delay_id), {});
        assert.equal((await bodies()).filter((body) => body === "sent").length, 1);
    },
    "restart begins the delay again": async () => {
        const { delay_id } = await laterState("restarted", 3000, { n: 3 });
        for (let beat = 0; beat < 4; beat++) {
            await pause(1000);
            assert.deepEqual(await client._unstable_restartScheduledDelayedEvent(delay_id), {});
        }
        assert.equal(await state("restarted"), undefined);
        await until(async () => (await state("restarted"))?.n === 3);
    },
    "cancel ends it unsent": async () => {
        const { delay_id } = await later("cancelled", 1500);
        assert.deepEqual(await client._unstable_cancelScheduledDelayedEvent(delay_id), {});
        await pause(2000);
        assert.ok(!(await bodies()).includes("cancelled"));
        const error = await refusal(client._unstable_restartScheduledDelayedEvent(delay_id));
        assert.deepEqual([error.httpStatus, error.errcode], [404, "M_NOT_FOUND"]);
    },
    "a cancel right after a send contradicts it in neither answer": async () => {
        for (let round = 0; round < 10; round++) {
            const { delay_id } = await later(`either ${round}`, HOUR);
            const both = [client._unstable_sendScheduledDelayedEvent(delay_id), client._unstable_cancelScheduledDelayedEvent(delay_id)];
            const [sent, cancelled] = (await Promise.allSettled(both)).map((one) => one.status === "fulfilled");
            assert.notEqual(sent, cancelled);
            assert.equal((await bodies()).includes(`either ${round}`), sent);
        }
    },
    "the older way with the action in the body": async () => {
        const { delay_id } = await later("older", HOUR);
        assert.deepEqual(await client._unstable_updateDelayedEvent(delay_id, "restart"), {});
        assert.deepEqual(await client._unstable_updateDelayedEvent(delay_id, "cancel"), {});
    },
    "one event can be looked at": async () => {
        const { delay_id } = await laterState("one", HOUR, { n: 4 });
        const one = await client._unstable_getDelayedEvent(delay_id);
        assert.deepEqual([one.delay_id, one.room_id, one.type, one.state_key, one.content], [delay_id, room, STATE, "one", { n: 4 }]);
        await client._unstable_cancelScheduledDelayedEvent(delay_id);
    },
    "an id that is unknown is not found": async () => {
        const error = await refusal(client._unstable_sendScheduledDelayedEvent("unknown"));
        assert.deepEqual([error.httpStatus, error.errcode], [404, "M_NOT_FOUND"]);
    },
    "a delay that is too long is refused with the longest one": async () => {
        for (const delay of [1e12, 1e13]) {
            const { data } = await refusal(later("too long", delay));
            assert.equal(data["org.matrix.msc4140.errcode"], "M_MAX_DELAY_EXCEEDED");
            assert.equal(data["org.matrix.msc4140.max_delay"], 7 * 24 * HOUR);
        }
    },
    "a message burns by a delayed redaction": async () => {
        const { event_id } = await client.sendEvent(room, "m.room.message", text("burn"));
        await client._unstable_sendDelayedEvent(room, { delay: 300 }, null, "m.room.redaction", { redacts: event_id });
        await until(async () => (await client.fetchRoomEvent(room, event_id)).content.body === undefined);
    },
    "MatrixRTC keeps a membership by restarts and ends it when it leaves": async () => {
        const { call, errors } = await join(4000, 1000);
        const members = async () =>
            (await client.createMessagesRequest(room, null, 100, "b")).chunk.filter((event) => event.type === MEMBER);
        await until(async () => (await members()).length === 1);
        await pause(6000);
        assert.equal((await members()).length, 1);
        assert.equal(await call.leaveRoomSession(20000), true);
        await until(async () => (await members()).length === 2);
        assert.deepEqual((await members())[0].content, {});
        assert.deepEqual(errors, []);
        await until(async () => (await scheduled()).length === 0);
    },
};

for (const [name, run] of Object.entries(cases)) {
    if (!only.test(name)) continue;
    const told = await run().then(() => ({ name, passed: true }), (error) => ({ name, passed: false, said: String(error?.stack ?? error) }));
    process.stdout.write(JSON.stringify(told) + "\n");
}
process.exit(0);
