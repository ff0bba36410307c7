// Forms by which something is asked for: the content of a message, and what the server says to it.

import { field, h, options } from "./dom.js";
import { spell, typed } from "./format.js";
import { wholeDestination } from "./route.js";
import { fromField, toField, zone } from "./zone.js";

/** Headers as they are typed, one in a line; null where a line is none. */
function headersOf(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  const pairs = lines.map((line) => /^([^:]+):\s*(.*)$/.exec(line));
  return pairs.every(Boolean) ? Object.fromEntries(pairs.map(([, name, value]) => [name.trim(), value])) : null;
}

/** What is wrong with what was typed, and where. */
const wrong = (text, name) => Object.assign(new Error(text), { field: name });

/** A field for words; what its address asks for is in it. */
export const text = (asked, id, placeholder, more = {}) =>
  h("input", { id, autocomplete: "off", spellcheck: "false", placeholder, value: asked[id] ?? "", ...more });

/** The fields of a message's content. */
export class Content {
  constructor(asked) {
    this.destination = text(asked, "destination", "orders, or https://…", { required: true });
    this.payload = h("textarea", { id: "payload", rows: "6", spellcheck: "false" }, asked.payload ?? "");
    this.kind = h("select", { id: "kind", "aria-label": "The payload is" }, options([["text", "text"], ["json", "JSON"]], asked.kind ?? "text"));
    this.owner = text(asked, "owner", "shop");
    this.key = text(asked, "key", "order-1234");
    this.ttl = text(asked, "ttl_ms", "none", { value: asked.ttl_ms ? spell(Number(asked.ttl_ms)) : "" });
    this.headers = h("textarea", { id: "headers", rows: "3", spellcheck: "false", placeholder: "content-type: text/plain" }, asked.headers ?? "");
    this.where = field("Destination", this.destination, "grows");
    this.what = [
      h("div", { class: "field grows" }, h("div", { class: "labels" }, h("label", { for: "payload" }, "Payload"), this.kind), this.payload),
      h("div", { class: "row" }, field("Owner", this.owner), field("Order key", this.key), field("Time to live (w d h m s ms)", this.ttl)),
    ];
    this.more = field("Headers, one in a line", this.headers, "grows");
  }

  /** A request with this content and more, as JSON; raises what is wrong in the form itself. */
  request(more) {
    const headers = headersOf(this.headers.value);
    if (headers === null) throw wrong("a header is written as name: value", "headers");
    const ttl = this.ttl.value.trim(), ttlMs = ttl ? typed(ttl) : undefined;
    if (ttlMs === null) throw wrong(`${ttl} is not a duration like 1h30m`, "ttl_ms");
    const said = {
      destination: wholeDestination(this.destination.value.trim()), owner: this.owner.value.trim(), key: this.key.value,
      ttl_ms: ttlMs, headers: Object.keys(headers).length ? headers : undefined, ...more,
    };
    for (const [name, value] of Object.entries(said)) if (value === "") delete said[name];
    const payload = this.payload.value;
    if (this.kind.value !== "json") return JSON.stringify({ ...said, payload });
    try { JSON.parse(payload); } catch (error) { throw wrong(`the payload is not JSON: ${error.message}`, "payload"); }
    // As it was typed: read and written again, a large number would be another one.
    return `${JSON.stringify(said).slice(0, -1)},"payload_json":${payload}}`;
  }
}

/** Fields for a time: a delay or an instant, and whatever else is given as `before` them. */
export class Time {
  constructor(asked, ...before) {
    this.how = h("select", { id: "when", onchange: () => this.arrange() },
      options([...before, ["delay", "after a delay"], ["due", "at an instant"]], asked.due ? "due" : asked.delay || !before.length ? "delay" : before[0][0]));
    this.delay = text(asked, "delay", "1h30m", { value: asked.delay ?? "1h" });
    this.due = h("input", { id: "due", type: "datetime-local", step: "1", value: toField(Number(asked.due) || Date.now() + 3600000) });
    this.fields = { how: field("When", this.how), delay: field("Delay (w d h m s ms)", this.delay), due: field(`Due at, ${zone.name}`, this.due) };
    this.arrange();
  }

  get elements() { return Object.values(this.fields); }

  arrange() { for (const kind of ["delay", "due"]) this.fields[kind].hidden = this.how.value !== kind; }

  /** The time as the API takes it. */
  request() {
    if (this.how.value === "delay") return { delay: this.delay.value.trim() };
    return this.how.value === "due" ? { due_at_ms: fromField(this.due.value) } : {};
  }
}

/** Fields that the server and the form name differently. */
const NAMED = { due_at_ms: "due", payload_json: "payload", every_ms: "every", jitter_ms: "jitter", start_at_ms: "start", end_at_ms: "end", due_from_ms: "from", due_to_ms: "to" };

/** A form that does something; what does not work is said in it, at the field that it is about. */
export function sheet(about, yes, run, ...children) {
  const error = h("p", { class: "error", role: "alert" });
  const form = h("form", { class: "card sheet", "aria-label": about }, ...children, error, h("div", { class: "buttons" }, h("button", { class: "main", type: "submit" }, yes)));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    error.textContent = "";
    try {
      await run();
    } catch (refused) {
      error.textContent = `That did not work: ${refused.message}.`;
      const named = document.getElementById(NAMED[refused.field] ?? refused.field ?? "");
      const closed = named?.closest("details");
      if (closed) closed.open = true;
      named?.focus();
    }
  });
  return form;
}
