// Policies of the broker, a namespace or a topic: what is set there, and what is in force at each level above it.

import { api } from "./api.js";
import { card, failed, field as labelled, h, notice, options, put } from "./dom.js";
import { bytes, count, duration, spell, typed } from "./format.js";
import { address, go, here } from "./route.js";

const LEVELS = { broker: "Broker", namespace: "Namespace", topic: "Topic" };

/** The fields of a policy as the API's document describes them; they are the same for as long as this page lives. */
let described = null;
async function fieldsOfPolicy() {
  described ??= api.get("/openapi.json").then(({ components }) =>
    Object.entries(components.schemas.Policy.properties).map(([name, field]) => ({
      name, label: field.title, about: field.description, kind: field["x-kind"], words: field["x-words"] ?? {},
      least: field.minimum, most: field.maximum, choices: field.anyOf?.flatMap((one) => one.enum ?? []) ?? [],
    })));
  return described;
}

// The document is the longest answer of all: who comes here first asks for it while it is found out who that is.
if (here().page === "policies") fieldsOfPolicy().catch(() => { described = null; });

function told(field, value) {
  if (String(value) in field.words) return field.words[value];
  if (field.kind === "switch") return value ? "on" : "off";
  if (field.kind === "choice") return value.replaceAll("_", " ");
  if (field.kind === "duration") return duration(value);
  return field.kind === "bytes" ? bytes(value) : count(value);
}

/** The places whose policies hold at a place, from the broker down to it; null for a name that is none. */
function placesOf(level, name) {
  const parts = name.replace(/^persistent:\/\//, "").split("/").filter(Boolean);
  const broker = { level: "broker", name: "the broker", path: "/v1/policies/broker" };
  if (level === "broker") return [broker];
  const whole = level === "topic" && parts.length === 1 ? ["public", "default", ...parts] : parts;
  if (whole.length !== (level === "topic" ? 3 : 2)) return null;
  const at = (of, kind) => ({ level: kind, name: of.join("/"), path: `/v1/policies/${kind}s/${of.map(encodeURIComponent).join("/")}` });
  return [broker, at(whole.slice(0, 2), "namespace"), ...(level === "topic" ? [at(whole, "topic")] : [])];
}

function input(field, value) {
  const { name, kind } = field;
  const more = { id: `set-${name}`, "aria-describedby": `about-${name}` };
  const choices = kind === "switch" ? [["true", "on"], ["false", "off"]] : kind === "choice" ? field.choices.map((of) => [of, of.replaceAll("_", " ")]) : null;
  if (choices) return h("select", more, options([["", "not set"], ...choices], value === undefined ? "" : String(value)));
  const shown = value === undefined ? "" : String(value) in field.words ? field.words[value] : kind === "duration" ? spell(value) : String(value);
  return h("input", { ...more, autocomplete: "off", spellcheck: "false", value: shown, placeholder: "not set", list: Object.keys(field.words).length ? `words-${name}` : null });
}

/** What the form says of a field; null leaves it to the level above, undefined is what cannot be read. */
function read(field) {
  const given = document.getElementById(`set-${field.name}`).value.trim();
  if (given === "") return null;
  if (field.kind === "choice") return given;
  if (field.kind === "switch") return given === "true";
  const word = Object.keys(field.words).find((value) => field.words[value] === given);
  if (word !== undefined) return Number(word);
  const value = field.kind === "duration" ? typed(given) : Number(given);
  return value === null || Number.isNaN(value) ? undefined : value;
}

function row(field, levels) {
  const here = levels.at(-1);
  const words = Object.values(field.words);
  return h("div", { class: "policy-row" },
    h("label", { for: `set-${field.name}` }, field.label, h("span", { class: "muted", id: `about-${field.name}` }, field.about)),
    h("div", {}, input(field, here.set[field.name]), words.length ? h("datalist", { id: `words-${field.name}` }, words.map((word) => h("option", { value: word }))) : null),
    h("ul", { class: "in-force" }, levels.map((level) =>
      h("li", {}, h("span", { class: "muted" }, level === here ? "in force " : `${LEVELS[level.level]} `), told(field, level.inForce[field.name]),
        level.set[field.name] === undefined ? null : h("span", { class: "tag" }, "set")))));
}

function editor(levels, fields, again) {
  const { path, name, set } = levels.at(-1);
  const form = h("form", { class: "policy" }, fields.map((field) => row(field, levels)),
    h("div", { class: "buttons" }, h("button", { class: "main", type: "submit" }, "Save"),
      Object.keys(set).length ? h("button", { class: "danger", type: "button", onclick: () => act("DELETE", undefined, "The policy is removed.") }, "Remove") : null));
  const act = async (method, body, said) => {
    try {
      await api.call(method, path, body);
      notice(said, "good");
      again();
    } catch (error) {
      notice(`That did not work: ${error.message}.`, "bad");
      if (error.field) document.getElementById(`set-${error.field}`)?.focus();
    }
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wrong = fields.find((field) => read(field) === undefined);
    if (wrong) { notice(`${wrong.label}: that is neither a number nor a duration like 1h30m.`, "bad"); document.getElementById(`set-${wrong.name}`).focus(); return; }
    // Only what was changed here: what somebody else has set meanwhile stays.
    const changed = fields.map((field) => [field.name, read(field)]).filter(([field, value]) => value !== (set[field] ?? null));
    if (!changed.length) { notice("Nothing was changed."); return; }
    act("PATCH", Object.fromEntries(changed), "The policy is set.");
  });
  return card(`Set for ${name}`, {}, form);
}

/** What is set and what is in force at each of these places. */
const ask = (places) => Promise.all(places.map(async (place) => {
  const [inForce, set] = await Promise.all([api.get(place.path, { effective: true }), api.get(place.path, { or_empty: true })]);
  return { ...place, inForce, set };
}));

export async function policiesPage(place, may, { asked }) {
  const near = may.everywhere ? "public/default" : may.namespaces[0];
  const level = asked.level in LEVELS ? asked.level : may.everywhere ? "broker" : "namespace";
  const where = asked.name ?? (level === "topic" ? `${near}/orders` : near);
  const choice = h("select", { id: "level" }, options(Object.entries(LEVELS).filter(([one]) => one !== "broker" || may.everywhere), level));
  const name = h("input", { id: "name", autocomplete: "off", spellcheck: "false", value: where });
  const form = h("form", { class: "search" }, labelled("Level", choice), level === "broker" ? null : [labelled("Name", name, "grows"), h("button", { class: "main", type: "submit" }, "Show")]);
  form.addEventListener("submit", (event) => { event.preventDefault(); go(address("policies", [], { level: choice.value, name: choice.value === "broker" ? null : name.value.trim() })); });
  choice.addEventListener("change", () => go(address("policies", [], { level: choice.value })));
  const shown = h("div", { "aria-live": "polite" });
  let left = false;
  const show = async () => {
    const places = placesOf(level, where);
    if (places === null) { put(shown, h("p", { class: "empty error", role: "alert" }, level === "topic" ? "A topic is named tenant/namespace/topic." : "A namespace is named tenant/namespace.")); return; }
    try {
      const [fields, levels] = await Promise.all([fieldsOfPolicy(), ask(places.filter((one) => one.level !== "broker" || may.everywhere))]);
      if (!left) put(shown, editor(levels, fields, show));
    } catch (error) {
      put(shown, failed(error));
    }
  };
  place(h("h1", {}, "Policies"), h("p", { class: "lead muted" }, "The nearest level that says anything wins: topic, namespace, broker."), h("section", { class: "card", "aria-label": "Place" }, form), shown);
  await show();
  return () => { left = true; };
}
