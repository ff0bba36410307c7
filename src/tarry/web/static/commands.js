// Commands by filter: which there were, by whom and when; and one of them, which is confirmed by its count, watched and stopped.

import { api, every } from "./api.js";
import { back, card, facts, failed, h, notice, put, table } from "./dom.js";
import { asAsked, inWords } from "./filter.js";
import { away, count, duration, instant, precise } from "./format.js";
import { state } from "./message.js";
import { address, messagesAddress } from "./route.js";

/** What each command does, and what was done to its messages. */
export const ACTIONS = { cancel: ["Cancel", "cancelled"], move: ["Reschedule", "rescheduled"], send: ["Send now", "sent"], retry: ["Retry", "retried"] };

const OVER = ["done", "stopped"];
const LIST_AGAIN_MS = 2000;
const LOOK_AGAIN_MS = 500;

const pathOf = (id) => `/v1/commands/${encodeURIComponent(id)}`;
export const commandAddress = (id) => address("commands", [id]);

const messages = (number) => `${count(number)} ${number === 1 ? "message" : "messages"}`;
const verb = (command) => ACTIONS[command.action][0];
const past = (command) => ACTIONS[command.action][1];
const filtered = (command, text) => h("a", { href: messagesAddress(asAsked(command.filter)) }, text);

/** How far a command is, in a few words. */
function far(command) {
  if (command.phase === "counting") return `${count(command.counted)} counted so far`;
  return command.confirmed_at_ms ? `${count(command.done)} of ${count(command.counted)}` : `${count(command.counted)} counted`;
}

function list(commands) {
  const now = Date.now();
  if (!commands.length) return h("p", { class: "empty" }, "No command was given in the last week. ", h("a", { href: address("command") }, "Give one"), ".");
  return table("Commands by filter", [["Command", ""], ["State", ""], ["Messages", ""], ["Namespace", ""], ["Progress", ""], ["By", ""], ["When", ""]], commands.map((one) => [
    h("a", { href: commandAddress(one.id) }, verb(one)), state(one.phase), filtered(one, inWords(one.filter)), one.filter.namespace, far(one),
    one.confirmed_by ?? one.asked_by, h("span", { title: instant(one.asked_at_ms) }, away(one.asked_at_ms, now)),
  ]));
}

export async function commandsPage(place, may) {
  const shown = h("section", { class: "card", "aria-label": "Commands" });
  let before = "";
  const show = async () => {
    const asked = await Promise.all((may.everywhere ? [null] : may.namespaces).map((namespace) => api.get("/v1/commands", { namespace })));
    const commands = asked.flatMap((one) => one.commands).sort((a, b) => b.asked_at_ms - a.asked_at_ms);
    // What is the same stays, with the focus in it.
    if (before !== (before = JSON.stringify(commands))) put(shown, list(commands));
  };
  try {
    await show();
  } catch (error) {
    put(shown, failed(error));
  }
  place(h("div", { class: "page-head" }, h("h1", {}, "Commands"), h("a", { class: "button main", href: address("command") }, "Command messages")),
    h("p", { class: "lead muted" }, "One command for all messages that a filter chooses. They are counted first, and nothing is done before the count is confirmed."), shown);
  return every(LIST_AGAIN_MS, () => show().catch(() => {}));
}

/** What was done about a command, by whom and when. */
function life(command) {
  const steps = [[command.asked_at_ms, "Asked for", `by ${command.asked_by}`, "done"]];
  if (command.confirmed_at_ms) steps.push([command.confirmed_at_ms, "Confirmed", `by ${command.confirmed_by}`, "done"]);
  if (command.phase === "done") steps.push([command.ended_at_ms, "Done", `${messages(command.done)} ${past(command)}`, "good"]);
  if (command.phase === "stopped") steps.push([command.ended_at_ms, "Stopped", command.ended_by ? `by ${command.ended_by}` : "nobody confirmed it within an hour", "bad"]);
  return h("ol", { class: "life", "aria-label": "Life of the command" },
    steps.map(([at, name, text, kind]) => h("li", { class: kind }, h("span", { class: "when" }, precise(at)), h("strong", {}, name), h("span", { class: "muted" }, text))));
}

/** When messages are due that a command gives another time. */
function newTime(command) {
  if (command.due_at_ms !== null) return instant(command.due_at_ms);
  return command.delay_ms === null ? null : `${duration(command.delay_ms)} after each is reached`;
}

/** How far a command is: drawn anew with each answer, while the buttons below stay where they are. */
function progress(command) {
  const passed = command.passed ? ` ${count(command.passed)} had ended by then, or their state did not allow it.` : "";
  if (command.phase === "counting") return [h("p", { role: "status" }, `Counting: ${messages(command.counted)} so far.`)];
  if (command.phase === "counted") {
    return [h("p", { role: "status" }, command.counted ? `${messages(command.counted)} would be ${past(command)}. Nothing is done yet.` : "No message is chosen by this filter.")];
  }
  const text = command.confirmed_at_ms ? `${count(command.done)} of ${messages(command.counted)} ${past(command)}.${passed}` : "Nothing was done.";
  return [
    command.confirmed_at_ms && command.counted ? h("progress", { max: command.counted, value: Math.min(command.counted, command.done + command.passed), "aria-label": "Messages done" }) : null,
    h("p", { role: "status" }, text),
  ];
}

function buttons(command, act) {
  const stop = (text) => h("button", { type: "button", onclick: () => act("stop") }, text);
  if (OVER.includes(command.phase)) return null;
  if (command.phase !== "counted") return h("div", { class: "buttons" }, stop("Stop"));
  return h("div", { class: "buttons" },
    command.counted ? h("button", { class: `main ${command.action === "cancel" ? "danger" : ""}`, type: "button", onclick: () => act("confirm", { counted: command.counted }) }, `${verb(command)}: ${messages(command.counted)}`) : null,
    stop(command.counted ? "Leave them" : "Close"));
}

export async function commandPage(place, may, { rest: [id] }) {
  const path = pathOf(id), way = back("Commands", address("commands"));
  const body = h("div", {}), figures = h("div", {});
  let shown = null;
  const show = (command) => {
    if (JSON.stringify(command) === JSON.stringify(shown)) return;
    const same = shown?.phase === command.phase;
    shown = command;
    put(figures, progress(command));
    if (same) return;
    put(body, h("h1", {}, `${verb(command)} by filter `, state(command.phase)),
      h("div", { class: "cards" },
        card("Progress", { class: "half" }, figures, buttons(command, act)),
        card("Life", { class: "half" }, life(command)),
        card("Facts", { class: "wide" }, facts([
          ["Messages", filtered(command, inWords(command.filter))], ["Namespace", command.filter.namespace], ["Due then", newTime(command)],
          ["Accepted before", instant(command.asked_at_ms)], ["Id", command.id],
        ]))));
  };
  const act = async (name, given) => {
    try {
      show(await api.call("POST", `${path}/${name}`, given));
    } catch (error) {
      notice(`That did not work: ${error.message}.`, "bad");
    }
  };
  try {
    show(await api.get(path));
  } catch (error) {
    place(way, h("h1", {}, "Command"), failed(error, "There is no such command. One is remembered for a week after its end."));
    return () => {};
  }
  place(way, body);
  return every(LOOK_AGAIN_MS, async () => { if (!OVER.includes(shown.phase)) show(await api.get(path).catch(() => shown)); });
}
