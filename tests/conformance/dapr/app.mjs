// The JavaScript SDK as a client and as an application: says on its standard output what it gets.
import { createRequire } from "node:module";

const require = createRequire(process.env.SDK_FOLDER + "/");
const { CommunicationProtocolEnum, DaprClient, DaprServer, LogLevel } = require("@dapr/dapr");
const quiet = { level: LogLevel.Error };
const say = (...words) => console.log(JSON.stringify(words));

const server = new DaprServer({
  serverHost: "127.0.0.1",
  serverPort: process.env.APP_PORT,
  clientOptions: { daprHost: "127.0.0.1", daprPort: process.env.DAPR_HTTP_PORT, logger: quiet },
  logger: quiet,
});
await server.pubsub.subscribe("pubsub", "js", async (data) => say("js", data));
await server.pubsub.subscribeBulk("pubsub", "js-bulk", async (data) => say("js-bulk", data), {
  maxMessagesCount: 2,
  maxAwaitDurationMs: 200,
});
await server.start();

for (const [name, protocol, port] of [
  ["http", CommunicationProtocolEnum.HTTP, process.env.DAPR_HTTP_PORT],
  ["grpc", CommunicationProtocolEnum.GRPC, process.env.DAPR_GRPC_PORT],
]) {
  const client = new DaprClient({
    daprHost: "127.0.0.1",
    daprPort: port,
    communicationProtocol: protocol,
    logger: quiet,
  });
  const at = new Date(Date.now() + 500).toISOString();
  const metadata = { scheduledSendTime: at };
  const answer = await client.pubsub.publish("pubsub", "js", { via: name }, { metadata });
  say("published", name, answer.error === undefined);
  // Over HTTP the SDK gives the error back, over gRPC it throws it.
  const wrong = await client.pubsub
    .publish("nope", "js", { via: name }, { metadata })
    .catch((error) => ({ error }));
  say("refused", name, wrong.error !== undefined);
  const bulk = await client.pubsub.publishBulk("pubsub", "js", [{ bulk: name }], metadata);
  say("bulk", name, bulk.failedMessages.length);
}
