// Messages to browse: those that wait, the next due first, and those that have ended, the last ended first.

import { api } from "./api.js";
import { failed, field, h, namespaceField, options, put, table } from "./dom.js";
import { away, count, instant } from "./format.js";
import { destination, doing, state } from "./message.js";
import { address, go, messageAddress, messagesAddress, wholeDestination } from "./route.js";
import { fromField, toField, zone } from "./zone.js";

const STATES = [["", "waiting"], ["retrying", "retrying"], ["sent", "sent"], ["failed", "failed"], ["cancelled", "cancelled"], ["finalised", "ended, however"]];
const DOORS = ["http", "matrix", "dapr", "pulsar", "bulk"];
const LIMIT = 50;
/** A page of the list looks at some thousand messages; after so many pages somebody is asked whether to go on. */
const PAGES = 20;

/** States of messages that have not ended. */
const OPEN = { "": "scheduled", retrying: "retrying" };

/** What an address asks for, as the API takes it. */
export function query(asked, may) {
  const named = asked.state ?? "";
  const prefix = asked.key?.endsWith("*") ?? false;
  return {
    state: OPEN[named] ?? "finalised", outcome: named in OPEN || named === "finalised" ? null : named,
    owner: asked.owner, key: prefix ? null : asked.key, key_prefix: prefix ? asked.key.slice(0, -1) : null, door: asked.door, destination: wholeDestination(asked.destination),
    namespace: asked.namespace ?? (may.everywhere ? null : may.namespaces[0]), due_from_ms: asked.from, due_to_ms: asked.to,
  };
}

class Browser {
  constructor(may, asked) {
    this.may = may;
    this.asked = asked;
    this.found = [];
    this.next = null;
    this.left = false;
    this.element = h("div", {});
  }

  /** Look through further pages until something is found, everything was looked at, or it has been a while. */
  async goOn() {
    const before = this.found.length;
    try {
      for (let page = 0; page < PAGES && !this.left; page += 1) {
        const answer = await api.get("/v1/messages", { ...query(this.asked, this.may), limit: LIMIT, page: this.next });
        this.found.push(...answer.messages);
        this.next = answer.next_page;
        const enough = !this.next || this.found.length >= before + LIMIT || page === PAGES - 1;
        this.show(!enough);
        if (enough) return;
      }
    } catch (error) {
      put(this.element, failed(error));
    }
  }

  show(searching) {
    const now = Date.now(), ended = !((this.asked.state ?? "") in OPEN);
    const rows = this.found.map((one) => [
      h("a", { href: messageAddress(one.id) }, instant(ended ? one.finalised_at_ms : one.due_at_ms)),
      standing(one, now),
      destination(one.destination), one.key ?? "–", one.owner || "–", one.door,
    ]);
    const filtered = Object.keys(this.asked).length > 0;
    put(this.element, h("section", { class: "card", "aria-label": "Found" },
      rows.length ? table(ended ? "Messages that have ended" : "Messages that wait", [[ended ? "Ended" : "Due", ""], ["State", ""], ["Destination", ""], ["Key", ""], ["Owner", ""], ["Door", ""]], rows) : null,
      h("p", { class: rows.length ? "muted" : "empty", role: "status" },
        searching ? "Searching…" : this.next ? `${count(rows.length)} found so far. ` : rows.length ? `${count(rows.length)} found.` : filtered ? "Nothing was found." : "Nothing waits.",
        this.next && !searching ? h("button", { type: "button", onclick: () => this.goOn() }, rows.length ? "Show more" : "Search on") : null)));
  }
}

/** Where a message stands: a word for what is unusual, else when it is due. */
function standing(message, nowMs) {
  const word = doing(message);
  if (word === "retrying") return h("span", {}, h("span", { class: "state retrying", title: message.last_error }, word), message.next_attempt_at_ms ? ` ${away(message.next_attempt_at_ms, nowMs)}` : "");
  if (word !== "scheduled") return state(word);
  return message.due_at_ms === null ? "by command" : away(message.due_at_ms, nowMs);
}

function filters(may, asked) {
  const when = (name, value) => h("input", { id: name, type: "datetime-local", step: "1", value: value ? toField(Number(value)) : "" });
  const text = (name, placeholder) => h("input", { id: name, autocomplete: "off", spellcheck: "false", placeholder, value: asked[name] ?? "" });
  const inputs = {
    state: h("select", { id: "state" }, options(STATES, asked.state ?? "")),
    owner: text("owner", "shop"), destination: text("destination", "orders, or https://…"), key: text("key", "order-1234, or order-*"),
    door: h("select", { id: "door" }, options([["", "any"], ...DOORS.map((one) => [one, one])], asked.door ?? "")),
    from: when("from", asked.from), to: when("to", asked.to), namespace: namespaceField(may, asked.namespace),
  };
  const form = h("form", { class: "filters", role: "search", "aria-label": "Browse messages" },
    field("State", inputs.state), field("Destination", inputs.destination), field("Owner", inputs.owner), field("Key", inputs.key),
    field(`Due from, ${zone.name}`, inputs.from), field("Due before", inputs.to), field("Door", inputs.door), field("Namespace", inputs.namespace),
    h("div", { class: "buttons" }, h("button", { class: "main", type: "submit" }, "Search"),
      Object.keys(asked).length ? h("a", { class: "button", href: messagesAddress({}) }, "Clear") : null));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const said = Object.fromEntries(Object.entries(inputs).map(([name, input]) => [name, input.value.trim()]));
    go(messagesAddress({ ...said, from: fromField(said.from), to: fromField(said.to) }));
  });
  // On a phone the messages come first.
  return h("details", { class: "filter-box", open: matchMedia("(min-width: 40rem)").matches }, h("summary", {}, "Filters"), form);
}

export async function messagesPage(place, may, { asked }) {
  const id = h("input", { id: "id", type: "search", required: true, autocomplete: "off", spellcheck: "false", placeholder: "the id that scheduling gave" });
  const find = h("form", { class: "search", "aria-label": "Find one message" }, field("Find by id", id, "grows"), h("button", { type: "submit" }, "Open"));
  find.addEventListener("submit", (event) => { event.preventDefault(); go(messageAddress(id.value.trim())); });
  const head = h("div", { class: "page-head" }, h("h1", {}, "Messages"), may.produce ? h("a", { class: "button main", href: address("schedule") }, "Schedule a message") : null);
  if (!may.admin) {
    place(head, h("section", { class: "card", "aria-label": "Find" }, find, h("p", { class: "muted" }, "Lists are shown to tokens with the role admin.")));
    return () => {};
  }
  const browser = new Browser(may, asked);
  await browser.goOn();
  place(head, h("section", { class: "card", "aria-label": "Search" }, filters(may, asked), find), browser.element);
  return () => { browser.left = true; };
}
