// Repeats: messages that are sent again and again, by name: a list, and one with its next instants and what can be done to it.

import { api } from "./api.js";
import { ask, back, card, facts, failed, h, notice, put, table } from "./dom.js";
import { away, count, duration, instant } from "./format.js";
import { destination, headers, payload, state } from "./message.js";
import { address, go, messagesAddress, wholeDestination } from "./route.js";
import { zone } from "./zone.js";

const LIMIT = 100;

export const repeatAddress = (repeat) => address("repeats", [...repeat.namespace.split("/"), repeat.name]);
const pathOf = (rest) => `/v1/repeats/${rest.map(encodeURIComponent).join("/")}`;

/** How often, in words. */
export function rhythm(repeat) {
  if (repeat.cron !== null) return [h("code", {}, repeat.cron), h("span", { class: "muted" }, ` ${repeat.zone}`)];
  const months = repeat.every_months ? `${count(repeat.every_months)} ${repeat.every_months === 1 ? "month" : "months"}` : "";
  return [`every ${[months, repeat.every_ms ? duration(repeat.every_ms) : ""].filter(Boolean).join(" ")}`];
}

class Repeats {
  constructor(may, namespace) {
    this.may = may;
    this.found = [];
    /** Places to go on from, one for each namespace that is asked for. */
    this.open = (namespace ? [namespace] : may.everywhere ? [null] : may.namespaces).map((one) => ({ namespace: one, page: null }));
    this.element = h("div", {});
  }

  async goOn() {
    try {
      const asked = this.open.shift();
      const { repeats, next_page: page } = await api.get("/v1/repeats", { ...asked, limit: LIMIT });
      this.found.push(...repeats);
      if (page) this.open.unshift({ ...asked, page });
      if (this.open.length && this.found.length < LIMIT) return await this.goOn();
      this.show();
    } catch (error) {
      put(this.element, failed(error));
    }
    return undefined;
  }

  show() {
    const now = Date.now();
    const rows = this.found.map((one) => [
      h("a", { href: repeatAddress(one) }, one.name), state(one.trouble ? "stuck" : one.state), h("span", {}, rhythm(one)), destination(wholeDestination(one.destination)),
      one.next_due_at_ms.length ? away(one.next_due_at_ms[0], now) : "–", count(one.made), one.namespace,
    ]);
    put(this.element, h("section", { class: "card", "aria-label": "Found" }, rows.length
      ? table("Repeats", [["Name", ""], ["State", ""], ["How often", ""], ["Destination", ""], ["Next", ""], ["Made", "number"], ["Namespace", ""]], rows)
      : h("p", { class: "empty" }, "Nothing is sent again and again. ", h("a", { href: address("repeat") }, "Begin a repeat"), "."),
    this.open.length ? h("p", {}, h("button", { type: "button", onclick: () => this.goOn() }, "Show more")) : null));
  }
}

export async function repeatsPage(place, may, { asked }) {
  const repeats = new Repeats(may, asked.namespace);
  await repeats.goOn();
  place(h("div", { class: "page-head" }, h("h1", {}, "Repeats"), h("a", { class: "button main", href: address("repeat") }, "Begin a repeat")), repeats.element);
  return () => {};
}

function nextOnes(repeat) {
  const now = Date.now();
  if (!repeat.next_due_at_ms.length) return h("p", { class: "empty" }, "No occurrence is to come.");
  return [
    repeat.state === "paused" ? h("p", { class: "muted" }, "If it were resumed now:") : null,
    h("ol", { class: "life", "aria-label": "Next occurrences" }, repeat.next_due_at_ms.map((at) =>
      h("li", { class: "to-come" }, h("span", { class: "when" }, instant(at)), h("span", { class: "muted" }, away(at, now))))),
    repeat.cron !== null && repeat.zone !== zone.name ? h("p", { class: "muted" }, `Shown in ${zone.name}; the repeat is on the clock of ${repeat.zone}.`) : null,
  ];
}

function content(repeat, act) {
  const asks = h("div", { class: "asks" });
  const paused = repeat.state === "paused";
  return [
    h("div", { class: "page-head" }, h("h1", {}, repeat.name, " ", state(repeat.state)),
      h("div", { class: "buttons" },
        repeat.state === "over" ? null : paused
          ? h("button", { class: "main", type: "button", onclick: () => act("resume", "The repeat goes on.") }, "Resume")
          : h("button", { type: "button", onclick: () => act("pause", "The repeat is paused.") }, "Pause"),
        repeat.every_months ? null : h("a", { class: "button", href: address("repeat", [...repeat.namespace.split("/"), repeat.name]) }, "Change"),
        h("button", { class: "danger", type: "button", onclick: () => ask(asks, "End this repeat? Nothing is sent any more that is not due yet.", "End the repeat", () => act("remove")) }, "End"))),
    asks,
    repeat.trouble ? h("p", { class: "card error", role: "alert" }, `The next occurrence is not accepted: ${repeat.trouble}`) : null,
    h("div", { class: "cards" },
      card("Next occurrences", { class: "half" }, nextOnes(repeat)),
      card("Facts", { class: "half" }, facts([
        ["How often", h("span", {}, rhythm(repeat))], ["Destination", destination(wholeDestination(repeat.destination))], ["Namespace", repeat.namespace],
        ["Made", repeat.count === null ? count(repeat.made) : `${count(repeat.made)} of ${count(repeat.count)}`],
        ["Last one", instant(repeat.last_at_ms)], ["If it is missed", { all: "all are sent late", latest: "the latest is sent late", none: "none is sent late" }[repeat.missed]],
        ["Begins", repeat.start_at_ms], ["Ends", repeat.end_at_ms], ["Paused", repeat.paused_at_ms],
      ].map(([name, value]) => [name, typeof value === "number" ? instant(value) : value]).concat([
        ["Jitter", repeat.jitter_ms ? `up to ${duration(repeat.jitter_ms)}` : null], ["Owner", repeat.owner ? h("a", { href: messagesAddress({ owner: repeat.owner }) }, repeat.owner) : null],
        ["Key", repeat.key], ["Time to live", repeat.ttl_ms === null ? null : duration(repeat.ttl_ms)], ["Door", repeat.door],
      ]))),
      card("Content", { class: "wide" }, payload(repeat), headers(repeat.headers))),
  ];
}

export async function repeatPage(place, may, { rest }) {
  const path = pathOf(rest);
  const body = h("div", {});
  const show = (repeat) => put(body, content(repeat, act));
  const act = async (command, said) => {
    try {
      if (command === "remove") {
        await api.call("DELETE", path);
        notice("The repeat is ended.", "good");
        go(address("repeats"));
        return;
      }
      show(await api.call("POST", `${path}/${command}`));
      notice(said, "good");
    } catch (error) {
      notice(`That did not work: ${error.message}.`, "bad");
    }
  };
  try {
    show(await api.get(path));
    place(back("Repeats", address("repeats")), body);
  } catch (error) {
    place(back("Repeats", address("repeats")), h("h1", {}, "Repeat"), failed(error, "There is no such repeat."));
  }
  return () => {};
}
