// A participant of a call who leaves it even when their client is gone: the leave is a delayed event, and a client that lives
// restarts its delay. This is what Element Call does; here it is with nothing but matrix-js-sdk.
//
//     HOMESERVER=http://127.0.0.1:8008 USER_ID=… ACCESS_TOKEN=… ROOM_ID=… node leave.mjs
import { createClient } from "matrix-js-sdk";

const { HOMESERVER, USER_ID, ACCESS_TOKEN, ROOM_ID, DEVICE_ID = "PHONE", GONE_AFTER_MS = "8000" } = process.env;
const goneAfter = Number(GONE_AFTER_MS);
const client = createClient({ baseUrl: HOMESERVER, userId: USER_ID, accessToken: ACCESS_TOKEN, deviceId: DEVICE_ID });

const MEMBER = "org.matrix.msc3401.call.member";
const stateKey = `_${USER_ID}_${DEVICE_ID}`;
const joined = { application: "m.call", call_id: "", device_id: DEVICE_ID, scope: "m.room" };

// First the leave, due when nothing has been heard for a while; only then the join.
const { delay_id: leave } = await client._unstable_sendDelayedStateEvent(ROOM_ID, { delay: goneAfter }, MEMBER, {}, stateKey);
await client.sendStateEvent(ROOM_ID, MEMBER, joined, stateKey);
console.log("joined");

// A sign of life: each restart begins the delay again.
const alive = setInterval(() => client._unstable_restartScheduledDelayedEvent(leave).catch(console.error), goneAfter / 3);

process.on("SIGINT", async () => {
    clearInterval(alive);
    // Leave at once: the server sends the event that it holds.
    await client._unstable_sendScheduledDelayedEvent(leave);
    console.log("left");
    process.exit(0);
});
