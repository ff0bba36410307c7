// What is coming: messages due, in bars by door, that one can zoom by pointer, keyboard and buttons. It asks for counts, never for messages.

import { api } from "./api.js";
import { card, h, put, svg, table } from "./dom.js";
import { DAY, HOUR, MINUTE, SECOND, clock, compact, count, day, duration, spell, typed } from "./format.js";
import { address, go, messagesAddress, tell } from "./route.js";
import { offset } from "./zone.js";

const STEPS = [
  SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 30 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE, 30 * MINUTE,
  HOUR, 2 * HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY,
];
const RANGES = [["10 min", 10 * MINUTE], ["1 h", HOUR], ["6 h", 6 * HOUR], ["1 day", DAY], ["7 days", 7 * DAY], ["30 days", 30 * DAY]];
const SHORTEST = 20 * SECOND, LONGEST = 100 * 365 * DAY;
/** The page at its widest, and what is left and right of the chart: where it will be before it is there. */
const WIDEST = 1344, AROUND = 80;
const HEIGHT = 260, LEFT = 48, BOTTOM = 26, TOP = 10, RIGHT = 8;

/** The step that cuts a span into a good number of bars for a width. */
function stepFor(spanMs, width) {
  const most = Math.max(20, Math.min(120, Math.floor(width / 8)));
  return STEPS.find((step) => spanMs / step <= most) ?? STEPS.at(-1);
}

/** The beginning of the step an instant is in, by the clock of the zone that is shown. */
function floorTo(ms, step) {
  const shift = offset(ms);
  return Math.floor((ms + shift) / step) * step - shift;
}

/** A round number at or above a value. */
function roundUp(value) {
  if (value <= 4) return 4;
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 6, 8, 10].map((factor) => factor * size).find((one) => one >= value);
}

function tickName(ms, step) {
  if (step >= DAY) return day(ms, step >= 300 * DAY);
  const midnight = floorTo(ms, DAY) === ms;
  return midnight && step >= HOUR ? day(ms) : clock(ms, step < MINUTE);
}

export class UpcomingChart {
  /** `lists` says whether the reader may see which messages the bars are; `asked` is the range that the address asks for. */
  constructor(lists, asked) {
    this.lists = lists;
    this.spanMs = Math.max(SHORTEST, Math.min(LONGEST, typed(asked.span ?? "") ?? HOUR));
    /** Where it begins; null follows the clock. */
    this.fromMs = Number(asked.from) || null;
    this.cursor = null;
    this.data = null;
    this.drag = null;
    this.readout = h("p", { class: "readout", "aria-live": "polite" }, " ");
    this.listed = h("a", { class: "listed", hidden: !lists }, "List them");
    this.drawing = svg("svg", {
      class: "chart", height: HEIGHT, tabindex: "0", role: "group", "aria-roledescription": "chart",
      "aria-label": "Messages due, by time and door. Left and right arrows read the bars, Enter zooms into one, the link after the heading lists its messages, plus and minus zoom, Escape goes back to the next hour.",
    });
    this.legend = h("ul", { class: "legend", "aria-label": "Doors" });
    this.numbers = h("div", {});
    this.ranges = RANGES.map(([name, span]) =>
      h("button", { type: "button", onclick: () => this.look(null, span) }, name));
    this.all = h("button", { type: "button", onclick: () => this.everything() }, "All");
    const step = (text, label, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const controls = h("div", { class: "controls" },
      h("div", { class: "buttons", role: "group", "aria-label": "Range" }, this.ranges, this.all),
      h("div", { class: "buttons", role: "group", "aria-label": "Zoom" },
        step("‹", "Earlier", () => this.move(-0.5)), step("−", "Zoom out", () => this.zoom(2)),
        step("+", "Zoom in", () => this.zoom(0.5)), step("›", "Later", () => this.move(0.5))));
    this.element = card("What is coming", { class: "wide", aside: controls },
      h("div", { class: "chart-head" }, h("div", { class: "told" }, this.readout, this.listed), this.legend), this.drawing,
      h("details", { class: "as-table" }, h("summary", {}, "As a table"), this.numbers));
    this.listen();
    this.watcher = new ResizeObserver(() => this.resized());
    this.watcher.observe(this.drawing);
  }

  /** What is asked for: aligned, so that bars stay where they are while time goes on. */
  window() {
    const width = this.drawing.clientWidth || Math.min(document.documentElement.clientWidth, WIDEST) - AROUND;
    const step = stepFor(this.spanMs, width - LEFT);
    const from = floorTo(this.fromMs ?? Date.now(), step);
    const buckets = Math.max(1, Math.min(1000, Math.ceil(this.spanMs / step)));
    return { from_ms: from, to_ms: from + buckets * step, buckets };
  }

  async refresh() {
    const asked = this.window();
    const data = await api.get("/v1/upcoming", asked);
    // Somebody may have zoomed meanwhile.
    const now = this.window();
    if (now.from_ms === asked.from_ms && now.to_ms === asked.to_ms) {
      this.data = data;
      this.draw();
    }
  }

  resized() {
    const { from_ms: from, to_ms: to } = this.window();
    this.draw();
    if (this.data && (this.data.from_ms !== from || this.data.to_ms !== to)) this.refresh().catch(() => {});
  }

  look(fromMs, spanMs) {
    this.spanMs = Math.round(Math.max(SHORTEST, Math.min(LONGEST, spanMs)) / SECOND) * SECOND;
    this.fromMs = fromMs === null ? null : Math.round(fromMs);
    this.cursor = null;
    tell(address("", [], { from: this.fromMs, span: this.spanMs === HOUR ? null : spell(this.spanMs) }));
    this.refresh().catch(() => {});
  }

  zoom(factor) {
    const { from_ms: from } = this.window();
    const span = Math.max(SHORTEST, this.spanMs * factor);
    const middle = this.cursor !== null && this.data ? this.data.edges_ms[this.cursor] : from + this.spanMs / 2;
    // What follows the clock goes on to follow it.
    if (this.fromMs === null && this.cursor === null) this.look(null, span);
    else this.look(Math.max(0, middle - span / 2), span);
  }

  move(share) { this.look(Math.max(0, this.window().from_ms + share * this.spanMs), this.spanMs); }

  everything() {
    const last = this.data?.last_at_ms ?? 0;
    this.look(null, Math.max(HOUR, (last - Date.now()) * 1.02));
  }

  listen() {
    const at = (event) => {
      if (!this.data) return null;
      const box = this.drawing.getBoundingClientRect();
      const bars = this.data.edges_ms.length - 1;
      const place = Math.floor(((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * bars);
      return place >= 0 && place < bars ? place : null;
    };
    this.drawing.addEventListener("pointermove", (event) => {
      this.cursor = at(event);
      if (this.drag) this.drag.to = this.cursor ?? this.drag.to;
      this.draw();
    });
    this.drawing.addEventListener("pointerleave", () => { if (!this.drag) { this.cursor = null; this.draw(); } });
    this.drawing.addEventListener("pointerdown", (event) => {
      const place = at(event);
      if (place === null || event.button !== 0) return;
      this.drag = { from: place, to: place };
      if (event.pointerType !== "touch") this.drawing.setPointerCapture(event.pointerId);
    });
    this.drawing.addEventListener("pointerup", () => {
      const drag = this.drag;
      this.drag = null;
      if (!drag) return;
      if (drag.from === drag.to) {
        // A finger reads a bar first; the link beside the words then lists it.
        if (this.lists && event.pointerType === "mouse") go(this.address(drag.from));
        else this.draw();
        return;
      }
      const [low, high] = [Math.min(drag.from, drag.to), Math.max(drag.from, drag.to) + 1];
      this.look(this.data.edges_ms[low], this.data.edges_ms[high] - this.data.edges_ms[low]);
    });
    this.drawing.addEventListener("pointercancel", () => { this.drag = null; this.draw(); });
    this.drawing.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (!this.data || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.data.edges_ms.length - 2;
    const moves = { ArrowRight: (this.cursor ?? -1) + 1, ArrowLeft: (this.cursor ?? last + 1) - 1, Home: 0, End: last };
    if (event.key in moves) this.cursor = Math.max(0, Math.min(last, moves[event.key]));
    else if (event.key === "+" || event.key === "=") this.zoom(0.5);
    else if (event.key === "-") this.zoom(2);
    else if (event.key === "Enter" && this.cursor !== null) {
      const [from, to] = [this.data.edges_ms[this.cursor], this.data.edges_ms[this.cursor + 1]];
      this.look(from, to - from);
    } else if (event.key === "Escape") this.look(null, HOUR);
    else return;
    event.preventDefault();
    this.draw();
  }

  /** The messages of one bar, or of all of them. */
  address(at = null) {
    const { edges_ms: edges } = this.data;
    return messagesAddress(at === null ? { from: edges[0], to: edges.at(-1) } : { from: edges[at], to: edges[at + 1] });
  }

  /** One bar in words. */
  say(at) {
    const { edges_ms: edges, doors } = this.data;
    const step = edges[1] - edges[0];
    const [from, to] = [edges[at], edges[at + 1]];
    const time = step >= DAY ? `${day(from, true)} – ${day(to, true)}` : `${day(from)}, ${clock(from, step < MINUTE)}–${clock(to, step < MINUTE)}`;
    const parts = Object.entries(doors).filter(([, counts]) => counts[at]).map(([door, counts]) => `${door} ${count(counts[at])}`);
    const total = Object.values(doors).reduce((sum, counts) => sum + counts[at], 0);
    return `${time}: ${total ? `${count(total)} due (${parts.join(", ")})` : "nothing due"}`;
  }

  tell() {
    const { from_ms: from, to_ms: to, total, estimated } = this.data;
    return `${estimated ? "About " : ""}${count(total)} due in ${this.fromMs === null ? `the next ${duration(to - from)}` : `${duration(to - from)} from ${day(from)}, ${clock(from)}`}`;
  }

  draw() {
    const width = this.drawing.clientWidth;
    for (const [at, button] of this.ranges.entries()) {
      button.setAttribute("aria-pressed", this.fromMs === null && this.spanMs === RANGES[at][1]);
    }
    if (!this.data || !width) return;
    const { edges_ms: edges, doors } = this.data;
    const bars = edges.length - 1;
    const names = Object.keys(doors);
    const totals = Array.from({ length: bars }, (_, at) => names.reduce((sum, door) => sum + doors[door][at], 0));
    const top = roundUp(Math.max(...totals));
    const inner = width - LEFT - RIGHT, tall = HEIGHT - TOP - BOTTOM;
    const x = (at) => LEFT + (at / bars) * inner;
    const y = (value) => TOP + tall - (value / top) * tall;
    const parts = [];
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      parts.push(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(top * share), y2: y(top * share) }));
      parts.push(svg("text", { class: "tick end", x: LEFT - 8, y: y(top * share) + 4 }, compact(top * share)));
    }
    if (this.drag && this.drag.from !== this.drag.to) {
      const [low, high] = [Math.min(this.drag.from, this.drag.to), Math.max(this.drag.from, this.drag.to) + 1];
      parts.push(svg("rect", { class: "chosen", x: x(low), y: TOP, width: x(high) - x(low), height: tall }));
    } else if (this.cursor !== null && this.cursor < bars) {
      parts.push(svg("rect", { class: "cursor", x: x(this.cursor), y: TOP, width: inner / bars, height: tall }));
    }
    const gap = inner / bars > 6 ? 1.5 : 0.5;
    totals.forEach((total, at) => {
      let below = 0;
      for (const door of names) {
        const value = doors[door][at];
        if (!value) continue;
        const high = Math.max(1, y(below) - y(below + value));
        parts.push(svg("rect", { class: `door-${door}`, x: x(at) + gap / 2, y: y(below) - high, width: Math.max(1, inner / bars - gap), height: high }));
        below += value;
      }
    });
    parts.push(...this.ticks(edges, width, x));
    put(this.drawing, parts);
    const chosen = this.cursor !== null && this.cursor < bars ? this.cursor : null;
    this.readout.textContent = chosen === null ? this.tell() : this.say(chosen);
    this.listed.setAttribute("href", this.address(chosen));
    put(this.legend, names.map((door) => h("li", {}, svg("svg", { width: 10, height: 10, "aria-hidden": "true" }, svg("rect", { class: `door-${door}`, width: 10, height: 10, rx: 2 })), door)));
    this.list(names, totals);
  }

  ticks(edges, width, x) {
    const span = edges.at(-1) - edges[0];
    const step = STEPS.find((one) => span / one <= Math.max(2, width / 90) && one >= edges[1] - edges[0]) ?? STEPS.at(-1);
    const parts = [];
    for (let at = floorTo(edges[0] + step - 1, step); at <= edges.at(-1); at += step) {
      const place = x(((at - edges[0]) / span) * (edges.length - 1));
      if (place < LEFT || place > width - RIGHT - 14) continue;
      parts.push(svg("line", { class: "grid", x1: place, x2: place, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }));
      parts.push(svg("text", { class: "tick middle", x: place, y: HEIGHT - 8 }, tickName(at, step)));
    }
    return parts;
  }

  list(names, totals) {
    if (!this.numbers.parentElement.open) { put(this.numbers); return; }
    const rows = totals.map((total, at) => [total, at]).filter(([total]) => total);
    put(this.numbers, rows.length
      ? table("Messages due by time and door", [["From", ""], ["Due", "number"], ...names.map((door) => [door, "number"])],
        rows.map(([total, at]) => [this.from(at), count(total), ...names.map((door) => count(this.data.doors[door][at]))]))
      : h("p", { class: "empty" }, "Nothing is due."));
  }

  /** Where a bar begins, as a way to its messages. */
  from(at) {
    const text = `${day(this.data.edges_ms[at])}, ${clock(this.data.edges_ms[at], true)}`;
    return this.lists ? h("a", { href: this.address(at) }, text) : text;
  }

  close() { this.watcher.disconnect(); }
}
