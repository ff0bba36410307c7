// One message: its life, its content, and what can be done to it. Who may not, sees no buttons for it.

import { api, every } from "./api.js";
import { ask, back, card, copyable, facts, failed, h, notice, put, table } from "./dom.js";
import { away, bytes, count, duration, indented, instant, precise, topicName } from "./format.js";
import { address, messagesAddress, namedAddress, topicAddress } from "./route.js";
import { fromField, toField, zone } from "./zone.js";

const SHOWN_CHARACTERS = 4000;
/** How often, and how many times, it is looked whether a message that was told to go out has ended. */
const LOOK_EVERY_MS = 250;
const LOOKS = 40;
const LOOK_AGAIN_MS = 2000;
/** What is to be known of the due instant of a message that is paused by itself. */
const PAUSED = "later by as long as it is paused";
/** States that a message does not stay in. */
const OPEN = ["scheduled", "sending"];

export const state = (name) => h("span", { class: `state ${name}` }, name);

/** What a message is doing, in a word: one that waits for another attempt is retrying, one that is kept from going out is paused. */
export const doing = (message) => (message.state !== "scheduled" ? message.state : message.paused ? "paused" : message.last_error ? "retrying" : "scheduled");

/** A destination as a way to it, where it is one of this server's own topics. */
export function destination(full) {
  return full.startsWith("persistent://") ? h("a", { href: topicAddress(full) }, topicName(full)) : full;
}

/** A text without signs that cannot be seen. */
const legible = (text) => text.replace(/[^\P{Cc}\t\n\r]/gu, (one) => `\\x${one.codePointAt(0).toString(16).padStart(2, "0")}`);

/** The payload as it is read best: JSON indented, text as it is, bytes in base64. */
export function payload(message) {
  const isText = message.payload !== undefined && message.payload !== null;
  const text = isText ? message.payload : message.payload_base64 ?? null;
  if (text === null) return h("p", { class: "muted" }, "The body of a finalised message is not kept.");
  const json = isText ? indented(text) : null, shown = json ?? legible(text);
  const kind = !isText ? "base64" : json !== null && /^\s*[[{]/.test(text) ? "JSON" : "text";
  const block = h("pre", { tabindex: "0", role: "region", "aria-label": "Payload" }, shown.slice(0, SHOWN_CHARACTERS));
  const more = shown.length > SHOWN_CHARACTERS
    ? h("button", { type: "button", onclick: (event) => { block.textContent = shown; event.target.remove(); } }, "Show all of it") : null;
  return h("div", {}, h("h3", {}, "Payload", h("span", { class: "muted" }, ` ${kind}, ${bytes(isText ? new TextEncoder().encode(text).length : atob(text).length)}`)),
    text ? block : h("p", { class: "muted" }, "Empty."), more);
}

export function headers(of) {
  const rows = Object.entries(of ?? {});
  return rows.length ? h("div", {}, h("h3", {}, "Headers"), table("Headers", [["Header", ""], ["Value", ""]], rows)) : null;
}

/** What has happened to a message, and what is to come, in order. */
function life(message) {
  const now = Date.now();
  const steps = [[message.accepted_at_ms, "Accepted", `through the ${message.door} door`, "done"]];
  // What went out by hand, or was cancelled, never came to its due instant.
  if (message.due_at_ms !== null && !(message.finalised_at_ms < message.due_at_ms && message.finalised_at_ms)) {
    const late = message.due_at_ms < message.accepted_at_ms;
    steps.push([message.due_at_ms, "Due", message.paused === "message" ? PAUSED : late ? "past when it was accepted" : `${duration(message.due_at_ms - message.accepted_at_ms)} after it was accepted`, message.due_at_ms <= now && message.paused !== "message" ? "done" : "to-come"]);
  }
  for (const { number, at_ms: at, error } of message.attempts_made) steps.push([at, number ? `Attempt ${number} failed` : "Attempt failed", error, "bad"]);
  if (message.next_attempt_at_ms) steps.push([message.next_attempt_at_ms, "Next attempt", away(message.next_attempt_at_ms, now), "to-come"]);
  if (message.state === "sending") steps.push([now, "On its way", "", "now"]);
  if (message.finalised_at_ms) {
    const tries = message.state !== "cancelled" && message.attempts ? `at attempt ${count(message.attempts)}` : "";
    const lateness = message.state === "sent" && message.due_at_ms !== null ? `${duration(Math.max(0, message.finalised_at_ms - Math.max(message.due_at_ms, message.accepted_at_ms)))} late` : "";
    const reason = message.reason?.replace(/ \(attempt \d+, the last\)$/, "");
    steps.push([message.finalised_at_ms, { sent: "Sent", cancelled: "Cancelled", failed: "Failed" }[message.state] ?? message.state,
      [tries, lateness, reason, message.reference && `the receiver calls it ${message.reference}`].filter(Boolean).join(", "), message.state === "sent" ? "good" : "bad"]);
  }
  steps.sort((a, b) => a[0] - b[0]);
  return h("ol", { class: "life", "aria-label": "Life of the message" },
    steps.map(([at, name, text, kind]) => h("li", { class: kind }, h("span", { class: "when" }, precise(at)), h("strong", {}, name), text ? h("span", { class: "muted" }, text) : null)),
    message.due_at_ms === null && !message.finalised_at_ms ? h("li", { class: "to-come" }, h("span", { class: "when" }, "by command"), h("strong", {}, "Due"), h("span", { class: "muted" }, "it goes out when it is sent by hand, or with its group")) : null);
}

/** The commands that a message takes in its state, for those who may give them. */
function commandsOf(message, may, act, busy) {
  if (busy) return h("p", { class: "muted", role: "status" }, "It is on its way…");
  if (!may.produce) return null;
  if (message.state === "scheduled") return commands(message, act);
  return message.state === "failed" ? retries(act) : null;
}

function content(message, may, act, busy) {
  const waits = message.state === "scheduled";
  const filter = (name, value) => (value && may.admin ? h("a", { href: messagesAddress({ [name]: value }) }, value) : value);
  return [
    h("h1", {}, "Message ", state(doing(message))), held(message, may),
    h("div", { class: "cards" },
      card("Life", { class: "half" }, life(message), commandsOf(message, may, act, busy)),
      card("Facts", { class: "half" }, facts([
        ["Destination", destination(message.destination)], ["Due", waits && message.due_at_ms ? `${instant(message.due_at_ms)}, ${message.paused === "message" ? PAUSED : away(message.due_at_ms, Date.now())}` : instant(message.due_at_ms)],
        ["Owner", filter("owner", message.owner)], ["Key", filter("key", message.key)], ["Name", message.name && may.produce ? h("a", { href: namedAddress(message.namespace, message.name) }, message.name) : message.name], ["Group", message.group],
        ["Namespace", message.namespace], ["Delay", message.delay_ms === null ? null : duration(message.delay_ms)],
        ["Time to live", message.ttl_ms === null ? null : duration(message.ttl_ms)], ["Attempts", message.attempts ? count(message.attempts) : null],
        ...(message.last_error ? [["Last error", message.last_error], ["Last attempt", instant(message.last_attempt_at_ms)]] : []),
        ...(message.next_attempt_at_ms ? [["Next attempt", `${instant(message.next_attempt_at_ms)}, ${away(message.next_attempt_at_ms, Date.now())}`]] : []),
      ]), h("p", { class: "id" }, h("span", { class: "muted" }, "Id "), copyable(message.id))),
      card("Content", { class: "wide" }, payload(message), headers(message.headers))),
  ];
}

/** A form that asks for an instant, and gives it. */
function askForInstant(asks, yes, give) {
  const at = h("input", { id: "due", type: "datetime-local", step: "1", required: true, value: toField(Date.now() + 3600000) });
  const form = h("form", { class: "search" }, h("div", { class: "field grows" }, h("label", { for: "due" }, `Due at, ${zone.name}`), at),
    h("button", { class: "main", type: "submit" }, yes), h("button", { type: "button", onclick: () => put(asks) }, "Leave it"));
  form.addEventListener("submit", (event) => { event.preventDefault(); give(fromField(at.value)); });
  put(asks, form);
  at.focus();
}

/** What has failed can be tried once more. */
function retries(act) {
  const asks = h("div", { class: "asks" });
  const said = "The message is accepted once more.";
  return h("div", { class: "commands" }, h("div", { class: "buttons" },
    h("button", { type: "button", onclick: () => ask(asks, "Try to send this message once more, now?", "Retry", () => act("retry", undefined, said), { danger: false }) }, "Retry now"),
    h("button", { type: "button", onclick: () => askForInstant(asks, "Retry", (at) => act("retry", { due_at_ms: at }, said)) }, "Retry later")), asks);
}

function commands(message, act) {
  const asks = h("div", { class: "asks" });
  const moved = () => askForInstant(asks, "Reschedule", (at) => act("restart", { due_at_ms: at }, "The message is rescheduled."));
  return h("div", { class: "commands" },
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: () => ask(asks, "Send this message now, before it is due?", "Send now", () => act("send", undefined, "The message is due now."), { danger: false }) }, "Send now"),
      h("button", { type: "button", onclick: moved }, "Reschedule"),
      message.paused === "message" ? h("button", { class: "main", type: "button", onclick: () => act("resume", undefined, "The message goes on.") }, "Resume")
        : message.due_at_ms === null ? null : h("button", { type: "button", onclick: () => act("pause", undefined, "The message is paused.") }, "Pause"),
      h("button", { class: "danger", type: "button", onclick: () => ask(asks, "Cancel this message? It will never be sent.", "Cancel the message", () => act("cancel", undefined, "The message is cancelled.")) }, "Cancel")),
    asks);
}

/** What keeps a message from going out, and where that is ended. */
function held(message, may) {
  if (!message.paused) return null;
  if (message.paused === "message") return h("p", { class: "card note-bar" }, "This message is paused: what is left of its delay goes on when it is resumed.");
  return h("p", { class: "card note-bar" }, `Its ${message.paused} is paused: once it is due it waits until that is resumed. `, may.admin ? h("a", { href: address("pauses") }, "See the pauses") : null);
}

/** Asked for by its id, or by its tenant, namespace and name. */
export async function messagePage(place, may, { rest }) {
  const named = rest.length === 3;
  let path = `/v1/${named ? "names" : "messages"}/${rest.map(encodeURIComponent).join("/")}`;
  let left = false, shown = null, following = false;
  const body = h("div", {});
  const show = (message, busy = false) => {
    shown = message;
    if (!left) put(body, content(message, may, act, busy));
  };
  /** A message that was told to go out is on its way: no command is offered before it is known what became of it. */
  const ended = async () => {
    following = true;
    for (let look = 0; look < LOOKS && !left; look += 1) {
      const message = await api.get(path);
      const open = OPEN.includes(message.state);
      // An attempt that failed leaves the message waiting for the next one.
      show(message, open && message.last_error === null);
      if (!open || message.last_error !== null) return;
      await new Promise((done) => { setTimeout(done, LOOK_EVERY_MS); });
    }
    show(await api.get(path));
  };
  const act = async (command, given, said) => {
    try {
      show(await api.call("POST", `${path}/${command}`, given));
      notice(said, "good");
      if (command === "send" || (command === "retry" && !given)) await ended();
    } catch (error) {
      notice(`That did not work: ${error.message}.`, "bad");
    }
    following = false;
  };
  /** What becomes of it shows by itself, but not under the hands of somebody who is asked something. */
  const look = async () => {
    if (following || shown === null || !OPEN.includes(shown.state) || body.querySelector(".asks:not(:empty)")) return;
    const before = JSON.stringify(shown);
    const now = await api.get(path).catch(() => shown);
    if (!following && JSON.stringify(now) !== before) show(now);
  };
  try {
    const message = await api.get(path);
    // What is done is done to the message that is shown: another one may have its name by then.
    path = `/v1/messages/${message.id}`;
    place(back(may.admin ? "Messages" : "Find another", address("messages")), body);
    show(message);
  } catch (error) {
    place(back("Messages", address("messages")), h("h1", {}, "Message"), failed(error, named ? `No message has the name ${rest.at(-1)} in ${rest.slice(0, 2).join("/")}.` : "There is no such message."));
  }
  const stop = every(LOOK_AGAIN_MS, look);
  return () => { left = true; stop(); };
}
