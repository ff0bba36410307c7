export { Client } from "./client.js";
export type { ClientOptions, Entry, ListFilters, Message, ReceiveOptions, Scheduled, ScheduleOptions, SubscribeOptions } from "./client.js";
export { TarryError, Unreachable } from "./errors.js";
export type { Problem } from "./errors.js";
export type { Payload, When } from "./payload.js";
export type { Which } from "./topic.js";
export type { components, operations, paths } from "./schema.js";
