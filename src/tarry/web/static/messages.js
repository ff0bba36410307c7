// Messages to browse: those that wait, the next due first, and those that have ended, the last ended first.

import { api } from "./api.js";
import { failed, field, h, put, table } from "./dom.js";
import { COMMANDED, FilterFields, OPEN, listed } from "./filter.js";
import { away, count, instant } from "./format.js";
import { destination, doing, state } from "./message.js";
import { address, go, messageAddress, messagesAddress, namedAddress } from "./route.js";

const STATES = [["", "waiting"], ["retrying", "retrying"], ["sent", "sent"], ["failed", "failed"], ["cancelled", "cancelled"], ["finalised", "ended, however"]];
const LIMIT = 50;
/** A page of the list looks at some thousand messages; after so many pages somebody is asked whether to go on. */
const PAGES = 20;

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
        const answer = await api.get("/v1/messages", { ...listed(this.asked, this.may), limit: LIMIT, page: this.next });
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
    const now = Date.now(), ended = !((this.asked.state ?? "") in OPEN), named = this.found.some((one) => one.name);
    const rows = this.found.map((one) => [
      h("a", { href: messageAddress(one.id) }, instant(ended ? one.finalised_at_ms : one.due_at_ms)),
      standing(one, now),
      destination(one.destination), one.key ?? "–", ...(named ? [one.name ?? "–"] : []), one.owner || "–", one.door,
    ]);
    const filtered = Object.keys(this.asked).length > 0;
    put(this.element, h("section", { class: "card", "aria-label": "Found" },
      rows.length ? table(ended ? "Messages that have ended" : "Messages that wait", [[ended ? "Ended" : "Due", ""], ["State", ""], ["Destination", ""], ["Key", ""], ...(named ? [["Name", ""]] : []), ["Owner", ""], ["Door", ""]], rows) : null,
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
  const fields = new FilterFields(may, asked, STATES);
  const form = h("form", { class: "filters", role: "search", "aria-label": "Browse messages" }, fields.elements,
    h("div", { class: "buttons" }, h("button", { class: "main", type: "submit" }, "Search"),
      Object.keys(asked).length ? h("a", { class: "button", href: messagesAddress({}) }, "Clear") : null));
  form.addEventListener("submit", (event) => { event.preventDefault(); go(messagesAddress(fields.asked())); });
  // On a phone the messages come first.
  return h("details", { class: "filter-box", open: matchMedia("(min-width: 40rem)").matches }, h("summary", {}, "Filters"), form);
}

/** One message, by its id or, for those who may, by its name: in public/default, or in the namespace before it. */
function finder(may) {
  const said = h("input", { id: "id", type: "search", required: true, autocomplete: "off", spellcheck: "false", placeholder: may.produce ? "an id, or trial-42" : "the id that scheduling gave" });
  const form = h("form", { class: "search", "aria-label": "Find one message" }, field(may.produce ? "Find by id or name" : "Find by id", said, "grows"), h("button", { type: "submit" }, "Open"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = said.value.trim(), [name, ...namespace] = text.split("/").reverse();
    if (!may.produce || /^[0-9a-f]{32}$/.test(text)) go(messageAddress(text));
    else go(namedAddress(namespace.reverse().join("/") || (may.everywhere ? "public/default" : may.namespaces[0]), name));
  });
  return form;
}

export async function messagesPage(place, may, { asked }) {
  const find = finder(may);
  const head = h("div", { class: "page-head" }, h("h1", {}, "Messages"), h("div", { class: "buttons" },
    may.admin && (asked.state ?? "") in COMMANDED ? h("a", { class: "button", href: address("command", [], asked) }, "Command all of these") : null,
    may.produce ? h("a", { class: "button main", href: address("schedule") }, "Schedule a message") : null));
  if (!may.admin) {
    place(head, h("section", { class: "card", "aria-label": "Find" }, find, h("p", { class: "muted" }, "Lists are shown to tokens with the role admin.")));
    return () => {};
  }
  const browser = new Browser(may, asked);
  await browser.goOn();
  place(head, h("section", { class: "card", "aria-label": "Search" }, filters(may, asked), find), browser.element);
  return () => { browser.left = true; };
}
