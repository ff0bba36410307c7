// A filter: which messages are meant. Its fields, and what an address keeps of it as the API takes it for lists and for commands.

import { field, h, namespaceField, options } from "./dom.js";
import { instant, topicName } from "./format.js";
import { wholeDestination } from "./route.js";
import { fromField, toField, zone } from "./zone.js";

const DOORS = ["http", "matrix", "dapr", "pulsar", "bulk"];

/** States of messages that have not ended, as an address and as the API name them. */
export const OPEN = { "": "scheduled", retrying: "retrying" };
/** States whose messages a command can be for. */
export const COMMANDED = { ...OPEN, failed: "failed" };

function common(asked) {
  const prefix = asked.key?.endsWith("*") ?? false;
  return {
    owner: asked.owner, key: prefix ? null : asked.key, key_prefix: prefix ? asked.key.slice(0, -1) : null, door: asked.door || null,
    destination: wholeDestination(asked.destination),
  };
}

/** What an address asks for, as lists take it. */
export function listed(asked, may) {
  const named = asked.state ?? "";
  return {
    ...common(asked), state: OPEN[named] ?? "finalised", outcome: named in OPEN || named === "finalised" ? null : named,
    namespace: asked.namespace ?? (may.everywhere ? null : may.namespaces[0]), due_from_ms: asked.from, due_to_ms: asked.to,
  };
}

/** What an address asks for, as commands take it. */
export function commanded(asked) {
  const at = (text) => (text === null || text === undefined || text === "" ? null : Number(text));
  const said = { ...common(asked), state: COMMANDED[asked.state ?? ""], namespace: asked.namespace, due_from_ms: at(asked.from), due_to_ms: at(asked.to) };
  return Object.fromEntries(Object.entries(said).filter(([, value]) => value !== null && value !== undefined && value !== ""));
}

/** The filter of a command, as an address keeps it. */
export function asAsked(filter) {
  return {
    state: Object.keys(COMMANDED).find((name) => COMMANDED[name] === filter.state), owner: filter.owner, key: filter.key_prefix ? `${filter.key_prefix}*` : filter.key,
    destination: filter.destination && topicName(filter.destination), door: filter.door, namespace: filter.namespace, from: filter.due_from_ms, to: filter.due_to_ms,
  };
}

/** The filter of a command in words. */
export function inWords(filter) {
  const { owner, key, destination, door } = asAsked(filter);
  const parts = [
    owner && `owner ${owner}`, key && `key ${key}`, destination && `to ${destination}`, door && `by ${door}`,
    filter.due_from_ms && `due from ${instant(filter.due_from_ms)}`, filter.due_to_ms && `due before ${instant(filter.due_to_ms)}`,
  ].filter(Boolean);
  const state = { failed: "failed", retrying: "retrying" }[filter.state] ?? "waiting";
  return `${parts.length ? "" : "all "}${state}${parts.length ? `, ${parts.join(", ")}` : ""}`;
}

/** Fields of a filter, filled as an address asks. */
export class FilterFields {
  constructor(may, asked, states, namespace = namespaceField(may, asked.namespace)) {
    const when = (name) => h("input", { id: name, type: "datetime-local", step: "1", value: asked[name] ? toField(Number(asked[name])) : "" });
    const words = (name, placeholder) => h("input", { id: name, autocomplete: "off", spellcheck: "false", placeholder, value: asked[name] ?? "" });
    this.inputs = {
      state: h("select", { id: "state" }, options(states, asked.state ?? "")),
      owner: words("owner", "shop"), destination: words("destination", "orders, or https://…"), key: words("key", "order-1234, or order-*"),
      door: h("select", { id: "door" }, options([["", "any"], ...DOORS.map((one) => [one, one])], asked.door ?? "")),
      from: when("from"), to: when("to"), namespace,
    };
    const { inputs } = this;
    this.state = field("State", inputs.state);
    this.elements = [
      this.state, field("Destination", inputs.destination), field("Owner", inputs.owner), field("Key", inputs.key),
      field(`Due from, ${zone.name}`, inputs.from), field("Due before", inputs.to), field("Door", inputs.door), field("Namespace", inputs.namespace),
    ];
  }

  /** What is typed, as an address keeps it. */
  asked() {
    const said = Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, input.value.trim()]));
    return { ...said, from: fromField(said.from), to: fromField(said.to) };
  }
}
