// Policies of the broker, a namespace or a topic: what is in force there, and what is set there.

import { api } from "./api.js";
import { card, h, notice, put } from "./dom.js";
import { duration } from "./format.js";

const none = "no limit";
const FIELDS = [
  ["delayed_delivery", "Delayed delivery", "Whether messages may be delayed; where not, they are due at once.", "choice"],
  ["tick_ms", "Tick, ms", "Due instants are rounded up to a multiple of this.", "whole"],
  ["slot_ms", "Finest slot, ms", "The granularity of the index.", "whole"],
  ["max_delay_ms", "Longest delay, ms", "0 lifts the limit of the levels above.", "whole"],
  ["max_pending_per_owner", "Waiting, per owner", "0 lifts the limit of the levels above.", "whole"],
  ["accept_per_second", "Accepted per second, per owner", "0 lifts the limit of the levels above.", "number"],
  ["send_per_second", "Sent per second, per owner", "Over it means later, never lost. 0 lifts the limit.", "number"],
  ["command_per_second", "Commands per second, per owner", "Cancelling, sending and restarting. 0 lifts the limit.", "number"],
  ["message_ttl_ms", "Time to live of entries, ms", "Counted from the due instant. 0 lifts the limit.", "whole"],
  ["retention_ms", "Retention of acknowledged entries, ms", "0 keeps none, -1 keeps them for ever.", "signed"],
  ["retention_bytes", "Retention, bytes", "At most so much of them; -1 has no bound.", "signed"],
  ["backlog_bytes", "Backlog quota, bytes", "What one subscription may have unacknowledged. 0 lifts the limit.", "whole"],
  ["backlog_ms", "Backlog quota, ms", "How old the oldest of it may be. 0 lifts the limit.", "whole"],
  ["backlog_action", "Over the backlog quota", "Producers are held, are refused, or the oldest entries go.", ["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]],
  ["deduplication", "Deduplication", "Whether a message that a Pulsar producer sends again is taken once.", "choice"],
  ["max_topics", "Topics of a namespace", "Partitions included. 0 lifts the limit of the levels above.", "whole"],
];

function told(name, value) {
  if (typeof value === "boolean") return value ? "on" : "off";
  if (["tick_ms", "slot_ms"].includes(name)) return duration(value);
  if (name === "retention_ms") return value < 0 ? "for ever" : value ? duration(value) : "none";
  if (name === "retention_bytes") return value < 0 ? none : String(value);
  if (name.endsWith("_ms")) return value ? duration(value) : none;
  return value ? String(value) : none;
}

function path(level, name) {
  const parts = name.replace(/^persistent:\/\//, "").split("/").filter(Boolean).map(encodeURIComponent);
  if (level === "broker") return "/v1/policies/broker";
  if (level === "namespace" && parts.length === 2) return `/v1/policies/namespaces/${parts.join("/")}`;
  if (level === "topic" && (parts.length === 1 || parts.length === 3)) return `/v1/policies/topics/${(parts.length === 1 ? ["public", "default", ...parts] : parts).join("/")}`;
  return null;
}

function input(name, kind, value) {
  const choices = kind === "choice" ? [["true", "on"], ["false", "off"]] : Array.isArray(kind) ? kind.map((of) => [of, of.replaceAll("_", " ")]) : null;
  if (choices) {
    return h("select", { id: `set-${name}`, value: value === undefined ? "" : String(value), "aria-describedby": `about-${name}` },
      [["", "not set"], ...choices].map(([of, text]) => h("option", { value: of, selected: of === (value === undefined ? "" : String(value)) }, text)));
  }
  return h("input", { id: `set-${name}`, type: "number", min: kind === "signed" ? "-1" : "0", step: kind === "number" ? "any" : "1", value: value ?? "", placeholder: "not set", "aria-describedby": `about-${name}` });
}

function read(name, kind) {
  const given = document.getElementById(`set-${name}`).value;
  if (given === "") return undefined;
  if (Array.isArray(kind)) return given;
  return kind === "choice" ? given === "true" : Number(given);
}

export function policiesPage(main, rights) {
  const level = h("select", { id: "level" }, rights.everywhere ? h("option", { value: "broker" }, "Broker") : null,
    h("option", { value: "namespace" }, "Namespace"), h("option", { value: "topic" }, "Topic"));
  const name = h("input", { id: "name", autocomplete: "off", spellcheck: "false", value: rights.everywhere ? "public/default" : rights.namespaces[0] });
  const nameField = h("div", { class: "field grows" }, h("label", { for: "name" }, "Name"), name);
  const shown = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "search" }, h("div", { class: "field" }, h("label", { for: "level" }, "Level"), level), nameField,
    h("button", { class: "main", type: "submit" }, "Show"));

  let asked = 0;
  const show = async () => {
    const mine = asked += 1;
    nameField.hidden = level.value === "broker";
    const at = path(level.value, name.value.trim());
    if (at === null) { put(shown, h("p", { class: "empty error", role: "alert" }, level.value === "topic" ? "A topic is named tenant/namespace/topic." : "A namespace is named tenant/namespace.")); return; }
    try {
      const inForce = await api.get(at, { effective: true });
      const set = await api.get(at, { or_empty: true });
      // Answers may overtake each other: what was asked for last is shown.
      if (mine !== asked) return;
      put(shown, editor(level.value === "broker" ? "the broker" : name.value.trim(), at, set, inForce, show));
    } catch (error) {
      put(shown, h("p", { class: "empty error", role: "alert" }, `That did not work: ${error.message}.`));
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); show(); });
  level.addEventListener("change", () => { name.value = level.value === "topic" ? "public/default/orders" : rights.everywhere ? "public/default" : rights.namespaces[0]; show(); });
  put(main, h("h1", {}, "Policies"), h("p", { class: "lead muted" }, "The nearest level that says anything wins: topic, namespace, broker."), h("section", { class: "card", "aria-label": "Place" }, form), shown);
  show();
}

function editor(place, at, set, inForce, again) {
  const form = h("form", { class: "policy" },
    FIELDS.map(([name, label, about, kind]) => h("div", { class: "policy-row" },
      h("label", { for: `set-${name}` }, label, h("span", { class: "muted", id: `about-${name}` }, about)),
      input(name, kind, set[name]),
      h("p", {}, h("span", { class: "muted" }, "in force "), told(name, inForce[name])))),
    h("div", { class: "buttons" }, h("button", { class: "main", type: "submit" }, "Save"),
      Object.keys(set).length ? h("button", { class: "danger", type: "button", onclick: () => act("DELETE", undefined, "The policy is removed.") }, "Remove") : null));
  const act = async (method, body, said) => {
    try {
      await api.call(method, at, body);
      notice(said, "good");
      again();
    } catch (error) {
      notice(`That did not work: ${error.message}.`, "bad");
      if (error.field) document.getElementById(`set-${error.field}`)?.focus();
    }
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    // All of it is replaced: a field that this page does not know yet goes back as it came.
    const known = new Set(FIELDS.map(([name]) => name));
    const kept = Object.entries(set).filter(([name]) => !known.has(name));
    const given = FIELDS.map(([name, , , kind]) => [name, read(name, kind)]).filter(([, value]) => value !== undefined);
    act("PUT", Object.fromEntries([...kept, ...given]), "The policy is set.");
  });
  return card(`Set for ${place}`, {}, form);
}
