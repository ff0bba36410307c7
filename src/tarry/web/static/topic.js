// One topic: its subscriptions, its entries, a live tail, and entries that wait. Looking takes nothing away from any consumer.

import { api } from "./api.js";
import { back, card, facts, failed, h, put, table } from "./dom.js";
import { away, bytes, count, indented, instant, topicName } from "./format.js";
import { headers, payload } from "./message.js";
import { pauseButton, pausesOf } from "./pauses.js";
import { Reader } from "./reader.js";
import { address, go, here, messageAddress, tell, topicAddress } from "./route.js";

const PAGE = 50;
/** Lines of the tail that stay. */
const KEPT = 200;

/** An entry in a line, and all of it for who opens it. */
function entryRow(entry) {
  const text = entry.payload ?? entry.payload_base64 ?? "";
  const brief = (entry.payload !== undefined && indented(text) !== null ? text.replace(/\s+/g, " ") : text).slice(0, 120);
  const body = h("div", {});
  const row = h("details", { class: "entry" },
    h("summary", {}, h("span", { class: "number" }, `#${entry.entry_id}`), h("span", { class: "when" }, instant(entry.published_at_ms)),
      entry.key ? h("span", { class: "tag" }, entry.key) : null, h("code", {}, brief)), body);
  row.addEventListener("toggle", () => {
    if (row.open) put(body, facts([["Published", instant(entry.published_at_ms)], ["Due", instant(entry.due_at_ms)], ["Key", entry.key ?? "–"]]), payload(entry), headers(entry.headers));
    else put(body);
  });
  return row;
}

/** Which entries these are, and of which. */
function range(found, { first_entry: first, next_entry: next }) {
  const [from, to] = [found[0].entry_id, found.at(-1).entry_id];
  if (next - first === 1) return `Entry ${count(from)}`;
  return `Entries ${count(from)} to ${count(to)}${from === first && to === next - 1 ? "" : ` of those from ${count(first)} to ${count(next - 1)}`}`;
}

class Entries {
  constructor(topic, stats, may, asked) {
    this.topic = topic;
    this.stats = stats;
    this.may = may;
    this.reader = null;
    this.list = h("div", { class: "entries" });
    this.told = h("p", { class: "muted", role: "status" });
    const { first_entry: first, next_entry: next } = stats;
    this.from = Math.max(first, Math.min(next, asked.from === undefined ? next - PAGE : Number(asked.from) || 0));
    const page = (name, from, off) => h("a", { class: `button ${off ? "off" : ""}`, "aria-disabled": off ? "true" : null, href: off ? null : topicAddress(topic, { from }) }, name);
    this.live = h("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggle() }, "Live");
    // Entries that are all shown have no pages.
    const all = this.from <= first && this.from + PAGE >= next;
    this.element = card("Entries", {
      class: "wide", aside: h("div", { class: "buttons" }, all || !may.consume ? null : [
        page("Oldest", first, this.from <= first), page("Earlier", Math.max(first, this.from - PAGE), this.from <= first),
        page("Later", this.from + PAGE, this.from + PAGE >= next), page("Newest", Math.max(first, next - PAGE), this.from + PAGE >= next)], this.live),
    }, this.told, this.list);
  }

  async show() {
    const { next_entry: next } = this.stats;
    if (!this.may.consume) { this.told.textContent = "Entries are shown to tokens with the role consume or admin."; this.live.hidden = true; return; }
    if (this.from >= next) { this.told.textContent = "The topic has no entries here."; return; }
    try {
      const found = (await new Reader(this.topic).read(this.from, Math.min(PAGE, next - this.from))).filter((entry) => entry.entry_id < this.from + PAGE);
      this.told.textContent = found.length ? range(found, this.stats) : "The entries here are not kept any more.";
      put(this.list, found.map(entryRow));
    } catch (error) {
      put(this.list, failed(error));
    }
  }

  toggle() {
    if (this.reader) { this.stop(); tell(topicAddress(this.topic, {})); return; }
    tell(topicAddress(this.topic, { live: 1 }));
    this.live.setAttribute("aria-pressed", "true");
    this.told.textContent = "Waiting for new entries…";
    put(this.list);
    this.reader = new Reader(this.topic);
    let seen = 0;
    this.reader.follow((entry) => {
      seen += 1;
      this.told.textContent = `${count(seen)} since you came, the newest first`;
      this.list.prepend(entryRow(entry));
      while (this.list.childElementCount > KEPT) this.list.lastElementChild.remove();
    }).catch((error) => { if (this.reader) { put(this.list, failed(error)); this.stop(); } });
  }

  stop() {
    this.reader?.close();
    this.reader = null;
    this.live.setAttribute("aria-pressed", "false");
  }
}

function subscriptions(topic, stats) {
  const rows = Object.entries(stats.subscriptions);
  return card("Subscriptions", { class: "wide" }, rows.length
    ? table("Subscriptions of the topic", [["Name", ""], ["Type", ""], ["Backlog", "number"], ["Unacknowledged", "number"], ["Consumers", ""]],
      rows.map(([name, of]) => [h("a", { href: topicAddress(topic, { from: of.acknowledged_below }) }, name), of.type.replace("_", "-") + (of.durable ? "" : ", not durable"),
        count(of.backlog), count(of.unacked), of.consumers.map((one) => one.name).join(", ") || "–"]))
    : h("p", { class: "empty" }, "Nobody has subscribed."));
}

async function delayed(topic, stats, path) {
  if (!stats.delayed) return null;
  const { entries, next } = await api.get(`${path}/delayed`, { limit: PAGE });
  const now = Date.now();
  return card("Waiting entries", { class: "wide" },
    table("Entries that wait for their due instant", [["Due", ""], ["When", ""], ["Entry", "number"], ["Key", ""], ["Payload", "number"]],
      entries.map((one) => [h("a", { href: messageAddress(one.id) }, instant(one.due_at_ms)), away(one.due_at_ms, now), count(one.entry_id), one.key ?? "–",
        bytes(one.payload === undefined ? atob(one.payload_base64).length : new TextEncoder().encode(one.payload).length)])),
    next === null ? null : h("p", { class: "muted" }, `${count(stats.delayed - entries.length)} more wait.`));
}

export async function topicPage(place, may, { rest, asked }) {
  const topic = `persistent://${rest.length === 1 ? `public/default/${rest[0]}` : rest.join("/")}`;
  const path = `/v1/topics/${topic.replace("persistent://", "").split("/").map(encodeURIComponent).join("/")}`;
  const way = back("Topics", address("topics"));
  const namespace = topic.replace("persistent://", "").split("/").slice(0, 2).join("/");
  let stats, waiting, pauses;
  try {
    stats = await api.get(path);
    [waiting, pauses] = await Promise.all([delayed(topic, stats, path), may.admin ? pausesOf(may, namespace) : []]);
  } catch (error) {
    place(way, h("h1", {}, topicName(topic)), failed(error, "There is no such topic."));
    return () => {};
  }
  const entries = new Entries(topic, stats, may, asked);
  await entries.show();
  const paused = pauses.some((one) => one.kind === "topic" && one.name === topic && !one.resumed);
  place(way, h("div", { class: "page-head" }, h("h1", {}, topicName(topic), paused ? " " : null, paused ? h("span", { class: "state paused" }, "paused") : null),
    h("div", { class: "buttons" },
      may.admin ? pauseButton({ kind: "topic", name: topic }, paused, () => go(here().whole)) : null,
      may.admin ? h("a", { class: "button", href: address("messages", [], { destination: topicName(topic) }) }, "Messages to it") : null,
      may.admin ? h("a", { class: "button", href: address("policies", [], { level: "topic", name: topic.replace("persistent://", "") }) }, "Policy") : null,
      may.produce ? h("a", { class: "button main", href: address("schedule", [], { destination: topicName(topic) }) }, "Schedule a message") : null)),
  h("div", { class: "cards" },
    card("Figures", { class: "wide" }, facts([["Entries kept", count(stats.next_entry - stats.first_entry)], ["First entry", count(stats.first_entry)], ["Next entry", count(stats.next_entry)], ["Waiting", count(stats.delayed)], ["Subscriptions", count(Object.keys(stats.subscriptions).length)]])),
    subscriptions(topic, stats), entries.element, waiting));
  if (asked.live && may.consume) entries.toggle();
  return () => entries.stop();
}
