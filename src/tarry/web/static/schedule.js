// Schedule a message by hand. The form can be filled by its address, so that a way to it can be kept.

import { api } from "./api.js";
import { field, h, notice, options } from "./dom.js";
import { wholeDestination } from "./messages.js";
import { go, messageAddress } from "./route.js";
import { fromField, toField, zone } from "./zone.js";

/** Headers as they are typed, one in a line; null where a line is none. */
function headersOf(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const pairs = lines.map((line) => /^([^:]+):\s*(.*)$/.exec(line));
  return pairs.every(Boolean) ? Object.fromEntries(pairs.map(([, name, value]) => [name.trim(), value])) : null;
}

class ScheduleForm {
  constructor(may, asked) {
    this.may = may;
    const text = (id, placeholder, more = {}) => h("input", { id, autocomplete: "off", spellcheck: "false", placeholder, value: asked[id] ?? "", ...more });
    this.destination = text("destination", "orders, or https://…", { required: true });
    this.payload = h("textarea", { id: "payload", rows: "6", spellcheck: "false" }, asked.payload ?? "");
    this.kind = h("select", { id: "kind" }, options([["text", "text"], ["json", "JSON"]], asked.kind ?? "text"));
    this.when = h("select", { id: "when", onchange: () => this.arrange() }, options([["delay", "after a delay"], ["due", "at an instant"]], asked.due ? "due" : "delay"));
    this.delay = text("delay", "1h30m", { value: asked.delay ?? "1h" });
    this.due = h("input", { id: "due", type: "datetime-local", step: "1", value: toField(Number(asked.due) || Date.now() + 3600000) });
    this.delayField = field("Delay (w d h m s ms)", this.delay);
    this.dueField = field(`Due at, ${zone.name}`, this.due);
    this.owner = text("owner", "shop");
    this.key = text("key", "order-1234");
    this.namespace = text("namespace", may.everywhere ? "public/default" : may.namespaces[0]);
    this.ttl = text("ttl_ms", "none", { inputmode: "numeric", pattern: "[0-9]*" });
    this.headers = h("textarea", { id: "headers", rows: "3", spellcheck: "false", placeholder: "content-type: text/plain" }, asked.headers ?? "");
    this.error = h("p", { class: "error", role: "alert" });
    this.element = h("form", { class: "card sheet", "aria-label": "Schedule a message" },
      field("Destination", this.destination, "grows"),
      h("div", { class: "row" }, field("When", this.when), this.delayField, this.dueField, field("Payload is", this.kind)),
      field("Payload", this.payload, "grows"),
      h("div", { class: "row" }, field("Owner", this.owner), field("Order key", this.key), field("Time to live, ms", this.ttl)),
      h("details", {}, h("summary", {}, "More"), field("Headers, one in a line", this.headers, "grows"), field("Namespace, where the destination is no topic", this.namespace, "grows")),
      this.error, h("div", { class: "buttons" }, h("button", { class: "main", type: "submit" }, "Schedule")));
    this.element.addEventListener("submit", (event) => { event.preventDefault(); this.schedule(); });
    this.arrange();
  }

  arrange() {
    this.delayField.hidden = this.when.value !== "delay";
    this.dueField.hidden = this.when.value !== "due";
  }

  /** The message as the API takes it; raises what is wrong in the form itself. */
  body() {
    const said = { destination: wholeDestination(this.destination.value.trim()), owner: this.owner.value.trim(), key: this.key.value, ttl_ms: Number(this.ttl.value) || undefined };
    if (!said.destination.startsWith("persistent://")) said.namespace = this.namespace.value.trim();
    const headers = headersOf(this.headers.value);
    if (headers === null) throw Object.assign(new Error("a header is written as name: value"), { field: "headers" });
    if (Object.keys(headers).length) said.headers = headers;
    if (this.when.value === "delay") said.delay = this.delay.value.trim();
    else said.due_at_ms = fromField(this.due.value);
    for (const [name, value] of Object.entries(said)) if (value === "") delete said[name];
    return said;
  }

  async schedule() {
    this.error.textContent = "";
    try {
      const { payload } = this;
      const said = this.body();
      let text = JSON.stringify(said);
      if (this.kind.value === "json") {
        try { JSON.parse(payload.value); } catch (error) { throw Object.assign(new Error(`the payload is not JSON: ${error.message}`), { field: "payload" }); }
        // As it was typed: read and written again, a large number would be another one.
        text = `${text.slice(0, -1)},"payload_json":${payload.value}}`;
      } else {
        text = JSON.stringify({ ...said, payload: payload.value });
      }
      const { id } = await api.send("POST", "/v1/messages", text);
      notice("The message is scheduled.", "good");
      go(messageAddress(id));
    } catch (error) {
      this.error.textContent = `That did not work: ${error.message}.`;
      const named = { due_at_ms: "due", payload_json: "payload" }[error.field] ?? error.field;
      (named && document.getElementById(named))?.focus();
    }
  }
}

export function schedulePage(place, may, { asked }) {
  const form = new ScheduleForm(may, asked);
  place(h("h1", {}, "Schedule a message"), form.element);
  return () => {};
}
