// Drives an unmodified matrix-js-sdk for the demonstration. Arguments: the folder with node_modules, and JSON with {url, user_id,
// access_token, device_id, room_id}. Each line of input asks for a delayed event; each line of output says what happened.
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

// The library wants a newer node for this one function of the language, and talks a lot.
Promise.withResolvers ??= function () {
    let resolve, reject;
    const promise = new Promise((...both) => ([resolve, reject] = both));
    return { promise, resolve, reject };
};
for (const level of ["log", "info", "debug", "warn", "trace", "error"]) console[level] = () => {};

const [modules, given] = [process.argv[2], JSON.parse(process.argv[3])];
const sdk = await import(pathToFileURL(path.join(modules, "node_modules/matrix-js-sdk/lib/index.js")).href);
const tell = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const client = sdk.createClient({
    baseUrl: given.url, userId: given.user_id, accessToken: given.access_token, deviceId: given.device_id,
});

client.on("Room.timeline", (event) => {
    const name = event.getContent()["demo.name"];
    // The homeserver's stamp: when the event was in the room.
    if (name) tell({ arrived: name, at_ms: event.getTs() });
});
// After the crash many come at once: a sync that left some out would not bring them later.
await client.startClient({ initialSyncLimit: 100 });

for await (const line of readline.createInterface({ input: process.stdin })) {
    const { name, due_at_ms } = JSON.parse(line);
    const delay = due_at_ms - Date.now();
    const content = { msgtype: "m.text", body: name, "demo.name": name };
    await client._unstable_sendDelayedEvent(given.room_id, { delay }, null, "m.room.message", content);
    tell({ scheduled: name, due_at_ms });
}
