// The index as a picture: its slots along time, one strip for each size, and how full each slot is.

import { go, messagesAddress } from "./route.js";
import { card, facts, h, put, svg, table } from "./dom.js";
import { DAY, bytes, clock, compact, count, day, instant, sizeName } from "./format.js";

const STRIP = 34, CELL = 24, SHADES = 5;

const slotAddress = (slot) => messagesAddress({ from: slot.start_ms, to: slot.start_ms + slot.size_ms });

/** How full a slot is beside the fullest of its size, in few steps. */
const shade = (value, most) => (value ? Math.max(1, Math.ceil(Math.sqrt(value / most) * SHADES)) : 0);

function span(slot) {
  return slot.size_ms >= DAY ? day(slot.start_ms, true) : `${day(slot.start_ms)}, ${clock(slot.start_ms)}`;
}

function strip(size, slots, width, nowMs, lists) {
  const first = Math.min(...slots.map((slot) => slot.start_ms));
  const last = Math.max(...slots.map((slot) => slot.start_ms + size));
  const most = Math.max(...slots.map((slot) => slot.versions));
  const x = (ms) => ((ms - first) / (last - first)) * width;
  const waiting = slots.reduce((sum, slot) => sum + slot.versions, 0);
  const cells = slots.map((slot) => {
    const wide = Math.max(2, x(slot.start_ms + size) - x(slot.start_ms) - 2);
    const text = compact(slot.versions);
    return svg("g", lists ? { class: "way", onclick: () => go(slotAddress(slot)) } : {},
      svg("title", {}, `${span(slot)}: ${count(slot.versions)} versions in ${slot.files} ${slot.files === 1 ? "file" : "files"}, ${bytes(slot.size_bytes)}`),
      svg("rect", { class: `cell shade-${shade(slot.versions, most)}`, x: x(slot.start_ms) + 1, y: 1, width: wide, height: CELL, rx: 3 }),
      wide > text.length * 7 + 6 ? svg("text", { class: `cell-text shade-${shade(slot.versions, most)}`, x: x(slot.start_ms) + 1 + wide / 2, y: 17 }, text) : null);
  });
  const now = nowMs > first && nowMs < last ? svg("line", { class: "now", x1: x(nowMs), x2: x(nowMs), y1: 0, y2: CELL + 2 }) : null;
  return h("div", { class: "strip" },
    h("h3", {}, sizeName(size), h("span", { class: "muted" }, ` ${count(slots.length)} ${slots.length === 1 ? "slot" : "slots"}, ${compact(waiting)} versions`)),
    svg("svg", { height: STRIP - 6, role: "img", "aria-label": `${sizeName(size)}: ${slots.length} slots with ${count(waiting)} versions, from ${instant(first)} to ${instant(last)}` }, cells, now),
    h("p", { class: "ends muted" }, h("span", {}, size >= DAY ? day(first, true) : `${day(first)}, ${clock(first)}`), h("span", {}, size >= DAY ? day(last, true) : `${day(last)}, ${clock(last)}`)));
}

export class Slots {
  /** `lists` says whether the reader may see which messages a slot holds. */
  constructor(lists) {
    this.lists = lists;
    this.body = h("div", {});
    this.element = card("Index", { class: "wide" }, this.body);
    this.data = null;
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.body);
    this.width = 0;
  }

  show(data, nowMs) {
    this.data = data;
    this.nowMs = nowMs;
    this.width = 0;
    this.draw();
  }

  draw() {
    const width = this.body.clientWidth;
    if (!this.data || !width || width === this.width) return;
    this.width = width;
    const { slots } = this.data;
    if (!slots.length) {
      put(this.body, h("p", { class: "empty" }, "No slot holds anything. What waits is in the ledger's tail; the pipeline indexes it from there."));
      return;
    }
    const open = this.body.querySelector("details")?.open;
    const sizes = [...new Set(slots.map((slot) => slot.size_ms))].sort((a, b) => b - a);
    put(this.body,
      facts([["Versions", count(this.data.versions)], ["Files", count(this.data.files)], ["On disk", bytes(this.data.size_bytes)], ["Complete up to seq", count(this.data.cursor)]]),
      sizes.map((size) => strip(size, slots.filter((slot) => slot.size_ms === size), width, this.nowMs, this.lists)),
      this.data.more ? h("p", { class: "muted" }, `${count(this.data.more)} more slots are not shown.`) : null,
      h("details", { class: "as-table", open }, h("summary", {}, "As a table"),
        table("Slots of the index", [["Size", ""], ["From", ""], ["Versions", "number"], ["Ended", "number"], ["Files", "number"], ["Bytes", "number"]],
          slots.slice(0, 500).map((slot) => [sizeName(slot.size_ms), this.lists ? h("a", { href: slotAddress(slot) }, instant(slot.start_ms)) : instant(slot.start_ms), count(slot.versions), count(slot.dels), count(slot.files), bytes(slot.size_bytes)]))));
  }

  close() { this.watcher.disconnect(); }
}
