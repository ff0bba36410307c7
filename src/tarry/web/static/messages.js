// Find messages, look at one, and end it, move it or send it now. Who may not, sees no buttons for it.

import { api } from "./api.js";
import { facts, h, notice, put, table } from "./dom.js";
import { away, bytes, count, instant, topicName } from "./format.js";

const WAYS = [["id", "Id"], ["key", "Key"], ["owner", "Owner"], ["destination", "Destination"]];
const PAGES = 20;
/** A page of the list looks at five thousand messages; after so many pages somebody is asked whether to go on. */
const LIMIT = 50;
const SHOWN_BYTES = 4000;
/** How often, and how many times, it is looked whether a message that was told to go out has ended. */
const LOOK_EVERY_MS = 250;
const LOOKS = 40;

/** A short name of a topic is made whole, as everywhere in Tarry. */
function wholeDestination(text) {
  if (text.includes("://")) return text;
  return `persistent://${text.split("/").length === 3 ? text : `public/default/${text}`}`;
}

class Search {
  constructor(rights) {
    this.rights = rights;
    this.found = [];
    this.next = null;
    this.asked = null;
    this.run = 0;
    const ways = rights.admin ? WAYS : WAYS.slice(0, 1);
    this.way = h("select", { id: "way", onchange: () => this.hint() }, ways.map(([value, name]) => h("option", { value }, name)));
    this.text = h("input", { id: "text", type: "search", required: true, autocomplete: "off", spellcheck: "false" });
    this.state = h("select", { id: "state" }, h("option", { value: "scheduled" }, "waiting"), h("option", { value: "finalised" }, "finalised"));
    this.stateField = h("div", { class: "field", hidden: true }, h("label", { for: "state" }, "That are"), this.state);
    this.results = h("div", { "aria-live": "polite" });
    const namespaces = rights.everywhere ? null : h("select", { id: "namespace" }, rights.namespaces.map((value) => h("option", { value }, value)));
    this.namespace = namespaces;
    this.form = h("form", { class: "search", role: "search" },
      h("div", { class: "field" }, h("label", { for: "way" }, "Find by"), this.way),
      h("div", { class: "field grows" }, h("label", { for: "text" }, "What"), this.text),
      this.stateField,
      namespaces && rights.admin ? h("div", { class: "field" }, h("label", { for: "namespace" }, "Namespace"), namespaces) : null,
      h("button", { class: "main", type: "submit" }, "Search"));
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.begin(); });
    this.element = h("div", {}, h("h1", {}, "Messages"), h("section", { class: "card", "aria-label": "Search" }, this.form), this.results);
    this.hint();
  }

  hint() {
    this.stateField.hidden = this.way.value === "id";
    this.text.placeholder = { id: "the id that scheduling gave", key: "order-1234", owner: "shop", destination: "orders, or https://…" }[this.way.value];
  }

  async begin() {
    const way = this.way.value, text = this.text.value.trim();
    this.run += 1;
    put(this.results);
    if (way === "id") {
      await look(text, this.rights, () => {}).catch((error) => this.fail(error));
      return;
    }
    this.found = [];
    this.next = null;
    this.asked = { state: this.state.value, limit: LIMIT, [way]: way === "destination" ? wholeDestination(text) : text, namespace: this.namespace?.value };
    await this.goOn();
  }

  /** Look through further pages until something is found, everything was looked at, or it has been a while. */
  async goOn() {
    const run = this.run;
    const before = this.found.length;
    try {
      for (let page = 0; page < PAGES; page += 1) {
        const answer = await api.get("/v1/messages", { ...this.asked, page: this.next });
        if (run !== this.run) return;
        this.found.push(...answer.messages);
        this.next = answer.next_page;
        this.show(page < PAGES - 1 && this.next && this.found.length < before + LIMIT);
        if (!this.next || this.found.length >= before + LIMIT) return;
      }
    } catch (error) {
      this.fail(error);
    }
  }

  fail(error) { put(this.results, h("p", { class: "empty error", role: "alert" }, error.status === 404 ? "There is no such message." : `That did not work: ${error.message}.`)); }

  show(searching) {
    const now = Date.now(), ended = this.asked.state === "finalised";
    const rows = this.found.map((one) => [
      h("button", { class: "link", type: "button", onclick: () => look(one.id, this.rights, () => this.begin()).catch((error) => notice(error.message, "bad")) }, instant(ended ? one.finalised_at_ms : one.due_at_ms)),
      ended ? state(one.state) : away(one.due_at_ms, now), topicName(one.destination), one.key ?? "–", one.owner || "–", one.door,
    ]);
    put(this.results, h("section", { class: "card", "aria-label": "Found" },
      rows.length ? table("Messages found", [[ended ? "Ended" : "Due", ""], ["", ""], ["Destination", ""], ["Key", ""], ["Owner", ""], ["Door", ""]], rows) : null,
      h("p", { class: rows.length ? "muted" : "empty" },
        searching ? "Searching…" : this.next ? `${count(rows.length)} found so far. ` : rows.length ? `${count(rows.length)} found.` : "Nothing was found.",
        this.next && !searching ? h("button", { type: "button", onclick: () => this.goOn() }, "Search on") : null)));
  }
}

const state = (name) => h("span", { class: `state ${name}` }, name);

function payload(message) {
  if (message.payload === undefined && message.payload_base64 === undefined) return h("p", { class: "muted" }, "The body of a finalised message is not kept.");
  const text = message.payload ?? message.payload_base64;
  const cut = text.length > SHOWN_BYTES;
  return h("div", {}, h("h3", {}, message.payload === undefined ? "Payload (base64)" : "Payload", h("span", { class: "muted" }, ` ${bytes(text.length)}`)),
    text ? h("pre", { tabindex: "0", "aria-label": "Payload" }, cut ? `${text.slice(0, SHOWN_BYTES)}…` : text) : h("p", { class: "muted" }, "Empty."));
}

/** Look at a message in a dialog. */
async function look(id, rights, changed) {
  const dialog = h("dialog", { class: "message", "aria-labelledby": "message-title" });
  const show = (message, busy = false) => put(dialog, content(message, busy));
  /** A message that was told to go out is on its way: no command is offered before it is known what became of it. */
  const ended = async () => {
    for (let look = 0; look < LOOKS && dialog.open; look += 1) {
      const message = await api.get(`/v1/messages/${encodeURIComponent(id)}`);
      const open = message.state === "scheduled" || message.state === "sending";
      // An attempt that failed leaves the message waiting for the next one.
      show(message, open && message.last_error === null);
      if (!open || message.last_error !== null) return;
      await new Promise((done) => { setTimeout(done, LOOK_EVERY_MS); });
    }
    if (dialog.open) show(await api.get(`/v1/messages/${encodeURIComponent(id)}`));
  };
  const act = async (path, body, said) => {
    try {
      show(await api.call("POST", `/v1/messages/${encodeURIComponent(id)}/${path}`, body));
      notice(said, "good");
      dialog.dataset.changed = "true";
      if (path === "send") await ended();
    } catch (error) {
      notice(`That did not work: ${error.message}.`, "bad");
    }
  };
  const content = (message, busy) => {
    const waits = message.state === "scheduled";
    return [
      h("div", { class: "card-head" }, h("h2", { id: "message-title" }, "Message ", state(message.state)),
        h("button", { class: "plain", type: "button", "aria-label": "Close", onclick: () => dialog.close() }, "✕")),
      facts([
        ["Destination", message.destination], ["Due", `${instant(message.due_at_ms)}${waits && message.due_at_ms ? `, ${away(message.due_at_ms, Date.now())}` : ""}`],
        ["Owner", message.owner || "–"], ["Key", message.key ?? "–"], ["Group", message.group ?? "–"], ["Namespace", message.namespace], ["Door", message.door],
        ["Accepted", instant(message.accepted_at_ms)], ["Attempts", count(message.attempts)],
        ...(message.last_error === null ? [] : [["Last attempt", instant(message.last_attempt_at_ms)], ["Last error", message.last_error]]),
        ...(message.next_attempt_at_ms === null ? [] : [["Next attempt", `${instant(message.next_attempt_at_ms)}, ${away(message.next_attempt_at_ms, Date.now())}`]]),
        ...(message.finalised_at_ms === null ? [] : [["Ended", instant(message.finalised_at_ms)], ["Reason", message.reason ?? "–"]]),
      ]),
      h("p", { class: "id" }, h("span", { class: "muted" }, "Id "), h("code", {}, message.id)),
      message.headers && Object.keys(message.headers).length
        ? table("Headers", [["Header", ""], ["Value", ""]], Object.entries(message.headers)) : null,
      payload(message),
      busy ? h("p", { class: "muted", role: "status" }, "It is on its way…") : waits && rights.produce ? commands(act) : null,
    ];
  };
  show(await api.get(`/v1/messages/${encodeURIComponent(id)}`));
  dialog.addEventListener("close", () => { dialog.remove(); if (dialog.dataset.changed) changed(); });
  document.body.append(dialog);
  dialog.showModal();
}

function commands(act) {
  const asks = h("div", { class: "asks" });
  const ask = (text, yes, run) => {
    // The focus goes to the question, where Enter changes nothing yet.
    const question = h("p", { tabindex: "-1" }, text);
    put(asks, question,
      h("div", { class: "buttons" }, h("button", { class: "main danger", type: "button", onclick: run }, yes), h("button", { type: "button", onclick: () => put(asks) }, "Leave it")));
    question.focus();
  };
  const moved = () => {
    const local = new Date(Date.now() + 3600000 - new Date().getTimezoneOffset() * 60000).toISOString().slice(0, 16);
    const at = h("input", { id: "due", type: "datetime-local", step: "1", required: true, value: local });
    const form = h("form", { class: "search" }, h("div", { class: "field grows" }, h("label", { for: "due" }, "Due at, in your time zone"), at),
      h("button", { class: "main", type: "submit" }, "Reschedule"), h("button", { type: "button", onclick: () => put(asks) }, "Leave it"));
    form.addEventListener("submit", (event) => { event.preventDefault(); act("restart", { due_at_ms: new Date(at.value).getTime() }, "The message is rescheduled."); });
    put(asks, form);
    at.focus();
  };
  return h("div", { class: "commands" },
    h("div", { class: "buttons" },
      h("button", { type: "button", onclick: () => ask("Send this message now, before it is due?", "Send now", () => act("send", undefined, "The message is due now.")) }, "Send now"),
      h("button", { type: "button", onclick: moved }, "Reschedule"),
      h("button", { class: "danger", type: "button", onclick: () => ask("Cancel this message? It will never be sent.", "Cancel the message", () => act("cancel", undefined, "The message is cancelled.")) }, "Cancel")),
    asks);
}

export function messagesPage(main, rights) {
  const search = new Search(rights);
  put(main, search.element);
  search.text.focus();
  return () => { search.run += 1; document.querySelector("dialog.message")?.close(); };
}
