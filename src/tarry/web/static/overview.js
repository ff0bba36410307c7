// The first page: what is coming, what is happening, and the state of the parts behind it.

import { api, every } from "./api.js";
import { UpcomingChart } from "./chart.js";
import { card, facts, h, put, svg, table } from "./dom.js";
import { away, bytes, compact, count, duration, instant, topicName } from "./format.js";
import { destination } from "./message.js";
import { pausesOf } from "./pauses.js";
import { address, go, messageAddress, messagesAddress, topicAddress } from "./route.js";
import { Slots } from "./slots.js";

/** A text that leads to a view, for those who may see it. */
const way = (may, href, text) => (may ? h("a", { href }, text) : text);

function tile(name) {
  const value = h("p", { class: "value" }, "–"), note = h("p", { class: "note" }, " ");
  const element = h("div", { class: "tile" }, h("h2", {}, name), value, note);
  return { element, show(text, more = "", kind = "") { value.textContent = text; value.className = `value ${kind}`; note.textContent = more || " "; } };
}

/** Messages sent in the last minutes, one bar for each step; a bar leads to its messages. */
function deliveries({ sent, step_ms: step }, nowMs, lists) {
  const most = Math.max(4, ...sent), total = sent.reduce((sum, one) => sum + one, 0);
  const from = (at) => nowMs - (sent.length - at) * step;
  return svg("svg", { class: "spark", viewBox: `0 0 ${sent.length * 10} 80`, preserveAspectRatio: "none", role: "img",
    "aria-label": `${count(total)} messages sent in the last ${duration(sent.length * step)}; at most ${count(most)} in ${duration(step)}` },
  sent.map((value, at) => svg("rect", { class: `${value ? "sent" : "sent none"} ${value && lists ? "way" : ""}`, x: at * 10 + 1, y: 79 - (value / most) * 76, width: 8, height: Math.max(1, (value / most) * 76),
    onclick: value && lists ? () => go(messagesAddress({ state: "sent", from: from(at), to: from(at + 1) })) : null })));
}

class Happening {
  constructor(lists) {
    this.lists = lists;
    this.body = h("div", {});
    this.element = card("What is happening", { class: "half" }, this.body);
  }

  show(now) {
    const { recent, counters } = now;
    const doors = Object.entries(recent.doors);
    const span = recent.sent.length * recent.step_ms, lately = { state: "sent", from: now.now_ms - span };
    put(this.body, deliveries(recent, now.now_ms, this.lists),
      h("p", { class: "ends muted" }, h("span", {}, `${duration(span)} ago`), this.lists ? h("a", { href: messagesAddress(lately) }, "List them") : null, h("span", {}, "now")),
      doors.length
        ? table("Lateness in the last five minutes, by door", [["Door", ""], ["Sent", "number"], ["p50", "number"], ["p95", "number"], ["p99", "number"], ["Latest", "number"]],
          doors.map(([door, of]) => [way(this.lists, messagesAddress({ ...lately, door }), door), count(of.sent), `≤ ${duration(of.p50_ms)}`, `≤ ${duration(of.p95_ms)}`, `≤ ${duration(of.p99_ms)}`, duration(of.max_ms)]))
        : h("p", { class: "empty" }, "Nothing was sent in the last five minutes."),
      facts([
        ["On their way", count(now.sending)], ["Accepted", count(counters.accepted ?? 0)], ["Sent", count(counters.sent ?? 0)], ["Cancelled", way(this.lists, messagesAddress({ state: "cancelled" }), count(counters.cancelled ?? 0))],
        ["Failed", way(this.lists, messagesAddress({ state: "failed" }), count(counters.failed ?? 0)), counters.failed ? "bad" : ""], ["Tried again", way(this.lists, messagesAddress({ state: "retrying" }), count(counters.retried ?? 0))],
      ]));
  }
}

/** The servers that share the ledger: who owns it, who stands by, and how far behind. */
function servers({ owner, epoch, standbys, trouble }) {
  const lag = (one) => (one.lag === null ? "position not known" : one.lag ? `${count(one.lag)} records behind` : "up to date");
  return h("div", {}, h("h3", {}, "Servers"), facts([
    ["Owner", `${owner}, epoch ${count(epoch)}`, "good"],
    ...standbys.map((one) => ["Stands by", `${one.name}, ${lag(one)}`, one.lag === null ? "bad" : "good"]),
    ...(trouble ? [["Stands by", "not known", "bad"]] : standbys.length ? [] : [["Stands by", "nobody", "bad"]]),
  ]));
}

class Parts {
  constructor() {
    this.body = h("div", {});
    this.element = card("Ledger and pipeline", { class: "half" }, this.body);
  }

  show(now) {
    const { cluster, ledger, pipeline } = now;
    const state = ledger.failed ? ["cannot be written", "bad"] : ledger.low_space ? ["disk nearly full", "bad"] : ["writing", "good"];
    put(this.body,
      h("h3", {}, "Ledger"),
      facts([
        ["State", ...state], ["Durable up to seq", count(ledger.durable_seq)], ["Waiting to be written", count(ledger.next_seq - 1 - ledger.durable_seq)],
        ["Segments", `${count(ledger.segments)}, ${bytes(ledger.used_bytes)}`], ["In the wheel", count(now.in_wheel)], ["In the tail", count(now.in_tail)],
        ["Loaded until", away(now.horizon_ms, now.now_ms)], ["Finalised up to", away(now.watermark_ms, now.now_ms)],
      ]),
      cluster ? servers(cluster) : null,
      h("h3", {}, "Pipeline"),
      pipeline
        ? facts([
          ["State", pipeline.up ? pipeline.state : `${pipeline.state}, not running`, pipeline.up ? "good" : "bad"], ["Records to index", count(pipeline.lag)],
          ["Behind for", duration(pipeline.behind_ms)], ["Last commit", pipeline.last_commit_at_ms ? away(pipeline.last_commit_at_ms, now.now_ms) : "–"],
          ["Commits", count(pipeline.commits)], ["Failures", count(pipeline.failures), pipeline.failures ? "bad" : ""],
        ])
        : h("p", { class: "empty" }, "No pipeline has run here. Deliveries do not need one; the tail serves them from memory."));
  }
}

class Backlogs {
  constructor() {
    this.body = h("div", {});
    this.element = card("Subscriptions", { class: "wide" }, this.body);
  }

  show({ subscriptions, total }) {
    put(this.body, subscriptions.length
      ? table("Subscriptions, the largest backlog first", [["Topic", ""], ["Subscription", ""], ["Type", ""], ["Backlog", "number"], ["Unacknowledged", "number"], ["Consumers", "number"]],
        subscriptions.map(({ topic, name, figures }) => [h("a", { href: topicAddress(topic) }, topicName(topic)), h("a", { href: topicAddress(topic, { from: figures.acknowledged_below }) }, name), figures.type.replace("_", "-"), count(figures.backlog), count(figures.unacked), count(figures.consumers.length)]))
      : h("p", { class: "empty" }, "No topic has a subscription."),
    total > subscriptions.length ? h("p", { class: "muted" }, `${count(total - subscriptions.length)} more have less to acknowledge.`) : null);
  }
}

class Failures {
  constructor() {
    this.body = h("div", {});
    this.element = card("Latest failures", { class: "wide" }, this.body);
  }

  async refresh() {
    const { messages } = await api.get("/v1/messages", { state: "finalised", outcome: "failed", limit: 10 });
    put(this.body, messages.length
      ? table("Latest messages that failed", [["When", ""], ["Destination", ""], ["Owner", ""], ["Attempts", "number"], ["Reason", ""]],
        messages.map((one) => [h("a", { href: messageAddress(one.id) }, instant(one.finalised_at_ms)), destination(one.destination), one.owner || "–", count(one.attempts), one.reason ?? "–"]))
      : h("p", { class: "empty" }, "None."));
  }
}

/** When the next message is due: those near it are in memory, of the others it is only known that they are later. */
function nextDue({ next_due_at_ms: next, pending, horizon_ms: horizon, now_ms: now }) {
  if (next !== null) return [next <= now ? "now" : duration(next - now), "until the next one"];
  return pending ? [`> ${duration(Math.max(0, horizon - now)).split(" ").slice(0, 2).join(" ")}`, "until the next one"] : ["–", "nothing waits"];
}

/** What fails is asked for again; the bar says how the server is. */
const quietly = (ask) => async () => { try { await ask(); } catch { /* see above */ } };

export async function overviewPage(place, may, { asked }) {
  const backlogs = new Backlogs();
  const behind = quietly(async () => backlogs.show(await api.get("/v1/backlogs", { limit: 20 })));
  if (!may.everywhere) {
    await behind();
    place(h("h1", {}, "Overview"), h("p", { class: "empty" }, "Figures of the whole server are shown to tokens that reach all namespaces. Yours reaches ", may.namespaces.join(", "), "."), backlogs.element);
    return every(5000, behind);
  }
  const lists = may.admin;
  const tiles = { pending: tile("Waiting"), next: tile("Next due"), sent: tile("Sent"), late: tile("Lateness"), failed: tile("Failed"), lag: tile("To index") };
  const chart = new UpcomingChart(lists, asked), happening = new Happening(lists), parts = new Parts(), slots = new Slots(lists);
  const failures = lists ? new Failures() : null;
  let failedBefore = null, failedShown = null;

  const live = quietly(async () => {
    const now = await api.get("/v1/overview");
    const sent = now.recent.sent.reduce((sum, one) => sum + one, 0);
    const p99 = Math.max(0, ...Object.values(now.recent.doors).map((door) => door.p99_ms));
    const failed = now.counters.failed ?? 0;
    failedBefore ??= failed;
    tiles.pending.show(compact(now.pending, 1e6), now.owners ? `of ${count(now.owners)} ${now.owners === 1 ? "owner" : "owners"}` : "");
    tiles.next.show(...nextDue(now));
    tiles.sent.show(compact(sent, 1e6), "in the last 5 min");
    tiles.late.show(sent ? `≤ ${duration(p99)}` : "–", sent ? "for 99 in 100" : "nothing sent lately");
    tiles.failed.show(compact(failed, 1e6), failed > failedBefore ? `${count(failed - failedBefore)} since you came` : "since the ledger began", failed > failedBefore ? "bad" : "");
    tiles.lag.show(now.pipeline ? compact(now.pipeline.lag, 1e6) : "–", now.pipeline ? (now.pipeline.up ? `records, ${duration(now.pipeline.behind_ms)} behind` : "the pipeline is down") : "no pipeline", now.pipeline && !now.pipeline.up ? "bad" : "");
    happening.show(now);
    parts.show(now);
    // A list is dearer than a figure: only when there is something new in it.
    if (failures && failed !== failedShown) {
      failedShown = failed;
      await quietly(() => failures.refresh())();
    }
  });
  const held = h("p", { class: "card note-bar", hidden: true });
  const pausing = quietly(async () => {
    const places = lists ? (await pausesOf(may)).filter((one) => !one.resumed) : [];
    held.hidden = !places.length;
    put(held, places.length === 1 ? `The ${places[0].kind} ${topicName(places[0].name)} is paused. ` : `${count(places.length)} places are paused. `, h("a", { href: address("pauses") }, "See the pauses"));
  });
  const coming = quietly(() => chart.refresh());
  const indexed = quietly(async () => slots.show(await api.get("/v1/slots"), Date.now()));
  // All of it together, when all of it is there: nothing moves under the reader's eyes.
  await Promise.all([live(), coming(), behind(), indexed(), pausing()]);
  place(h("h1", { class: "unseen" }, "Overview"), held,
    h("div", { class: "tiles" }, Object.values(tiles).map((one) => one.element)),
    h("div", { class: "cards" }, chart.element, happening.element, parts.element, slots.element, backlogs.element, failures?.element ?? null));
  chart.draw();
  slots.draw();
  const stops = [every(2000, live), every(5000, coming), every(5000, behind), every(10000, indexed), every(10000, pausing)];
  return () => { stops.forEach((stop) => stop()); chart.close(); slots.close(); };
}
