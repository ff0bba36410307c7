// Drives an unmodified matrix-js-sdk, for the tests beside this folder. Arguments: the folder with node_modules, and JSON with
// {scenario, url, user_id, access_token, device_id, room_id, …}. Each line of output is a JSON object; the end is {"done": …}.
import path from "node:path";
import { pathToFileURL } from "node:url";

// The library wants a newer node for this one function of the language, and talks a lot.
Promise.withResolvers ??= function () {
    let resolve, reject;
    const promise = new Promise((...both) => ([resolve, reject] = both));
    return { promise, resolve, reject };
};
for (const level of ["log", "info", "debug", "warn", "trace"]) console[level] = () => {};

const [modules, given] = [process.argv[2], JSON.parse(process.argv[3])];
const library = (name) => import(pathToFileURL(path.join(modules, "node_modules/matrix-js-sdk/lib", name)).href);
const sdk = await library("index.js");

const tell = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const client = sdk.createClient({
    baseUrl: given.url,
    userId: given.user_id,
    accessToken: given.access_token,
    deviceId: given.device_id,
});
const room = given.room_id;

// What a promise comes to, as a value that can be told.
const outcome = (promise) =>
    promise.then(
        (value) => ({ value }),
        (error) => ({ name: error.name, errcode: error.errcode, status: error.httpStatus, data: error.data }),
    );

const synced = () =>
    new Promise((resolve) => {
        client.on("sync", (state) => state === "PREPARED" && resolve());
        client.startClient({ initialSyncLimit: 10 });
    });

const scenarios = {
    // Every call of the client that has to do with delayed events.
    async calls() {
        const text = (body) => ({ msgtype: "m.text", body });
        const later = (body, delay, txn) =>
            client._unstable_sendDelayedEvent(room, { delay }, null, "m.room.message", text(body), txn);
        const sent = await later("sent", 3600000);
        const cancelled = await later("cancelled", 3600000);
        const restarted = await later("restarted", 6000);
        const timed = await client._unstable_sendDelayedStateEvent(room, { delay: 100 }, "org.example.state", { n: 1 }, "k");
        const keyless = await client._unstable_sendDelayedStateEvent(room, { delay: 3600000 }, "org.example.state", { n: 2 });
        const scheduled = await client._unstable_getDelayedEvents("scheduled");
        const actions = {
            restart: await outcome(client._unstable_restartScheduledDelayedEvent(restarted.delay_id)),
            send: await outcome(client._unstable_sendScheduledDelayedEvent(sent.delay_id)),
            sendAgain: await outcome(client._unstable_sendScheduledDelayedEvent(sent.delay_id)),
            cancel: await outcome(client._unstable_cancelScheduledDelayedEvent(cancelled.delay_id)),
            cancelAgain: await outcome(client._unstable_cancelScheduledDelayedEvent(cancelled.delay_id)),
            update: await outcome(client._unstable_updateDelayedEvent(keyless.delay_id, "restart")),
            unknown: await outcome(client._unstable_restartScheduledDelayedEvent("unknown")),
            tooLong: await outcome(later("too long", 1e12)),
            one: await outcome(client._unstable_getDelayedEvent(keyless.delay_id)),
        };
        const finalised = await client._unstable_getDelayedEvents("finalised");
        return { ids: { sent, cancelled, restarted, timed, keyless }, scheduled, actions, finalised };
    },

    // A message and its delayed redaction.
    async redaction() {
        const { event_id } = await client.sendEvent(room, "m.room.message", { msgtype: "m.text", body: "burn" });
        const answer = await client._unstable_sendDelayedEvent(
            room, { delay: given.delay }, null, "m.room.redaction", { redacts: event_id },
        );
        return { event_id, ...answer };
    },

    // The real MatrixRTC session joins, and its membership manager keeps the membership alive until this process is killed.
    async rtc() {
        await synced();
        while (!client.getRoom(room)) await new Promise((resolve) => setTimeout(resolve, 20));
        const session = sdk.MatrixRTCSession ?? (await library("matrixrtc/index.js")).MatrixRTCSession;
        const call = session.sessionForSlot(client, client.getRoom(room), { id: "", application: "m.call" });
        call.on("membership_manager_error", (error) => tell({ failed: String(error) }));
        call.on("join_state_changed", (isJoined) => tell({ joined: isJoined }));
        const transport = { type: "livekit", livekit_service_url: "https://sfu.invalid" };
        const identity = { userId: given.user_id, deviceId: given.device_id, memberId: `${given.user_id}:${given.device_id}` };
        // A membership that is a sticky event names its own SFU.
        call.joinRTCSession(identity, [transport], given.sticky ? transport : undefined, {
            delayedLeaveEventDelayMs: given.delay,
            delayedLeaveEventRestartMs: given.restart,
            unstableSendStickyEvents: given.sticky ?? false,
        });
        let told;
        setInterval(() => {
            const now = { status: call.membershipStatus, delay_id: call.delayId, members: call.memberships.length };
            if (JSON.stringify(now) !== told) tell(now);
            told = JSON.stringify(now);
        }, 50);
        process.stdin.on("data", async () => {
            tell({ left: await call.leaveRoomSession(10000) });
            process.exit(0);
        });
        await new Promise(() => {});
    },
};

tell({ done: await scenarios[given.scenario]() });
process.exit(0);
