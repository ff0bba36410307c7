// Policies of the broker, a namespace or a topic: what is in force there, and what is set there.

import { api } from "./api.js";
import { card, h, notice, put } from "./dom.js";
import { bytes, duration } from "./format.js";

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

function told(field, value) {
  if (String(value) in field.words) return field.words[value];
  if (field.kind === "switch") return value ? "on" : "off";
  if (field.kind === "choice") return value.replaceAll("_", " ");
  if (field.kind === "duration") return duration(value);
  return field.kind === "bytes" ? bytes(value) : String(value);
}

const UNITS = { duration: ", ms", bytes: "" };

function path(level, name) {
  const parts = name.replace(/^persistent:\/\//, "").split("/").filter(Boolean).map(encodeURIComponent);
  if (level === "broker") return "/v1/policies/broker";
  if (level === "namespace" && parts.length === 2) return `/v1/policies/namespaces/${parts.join("/")}`;
  if (level === "topic" && (parts.length === 1 || parts.length === 3)) return `/v1/policies/topics/${(parts.length === 1 ? ["public", "default", ...parts] : parts).join("/")}`;
  return null;
}

function input(field, value) {
  const { name, kind } = field;
  const choices = kind === "switch" ? [["true", "on"], ["false", "off"]] : kind === "choice" ? field.choices.map((of) => [of, of.replaceAll("_", " ")]) : null;
  if (choices) {
    return h("select", { id: `set-${name}`, "aria-describedby": `about-${name}` },
      [["", "not set"], ...choices].map(([of, text]) => h("option", { value: of, selected: of === (value === undefined ? "" : String(value)) }, text)));
  }
  return h("input", { id: `set-${name}`, type: "number", min: field.least, max: field.most, step: kind === "rate" ? "any" : "1", value: value ?? "", placeholder: "not set", "aria-describedby": `about-${name}` });
}

/** What the form says of a field; null leaves it to the level above. */
function read({ name, kind }) {
  const given = document.getElementById(`set-${name}`).value;
  if (given === "") return null;
  if (kind === "choice") return given;
  return kind === "switch" ? given === "true" : Number(given);
}

export function policiesPage(main, rights) {
  const level = h("select", { id: "level" }, rights.everywhere ? h("option", { value: "broker" }, "Broker") : null,
    h("option", { value: "namespace" }, "Namespace"), h("option", { value: "topic" }, "Topic"));
  const name = h("input", { id: "name", autocomplete: "off", spellcheck: "false", value: rights.everywhere ? "public/default" : rights.namespaces[0] });
  const nameField = h("div", { class: "field grows" }, h("label", { for: "name" }, "Name"), name);
  const shown = h("div", { "aria-live": "polite" });
  const form = h("form", { class: "search" }, h("div", { class: "field" }, h("label", { for: "level" }, "Level"), level), nameField,
    h("button", { class: "main", type: "submit" }, "Show"));

  let asked = 0;
  const show = async () => {
    const mine = asked += 1;
    nameField.hidden = level.value === "broker";
    const at = path(level.value, name.value.trim());
    if (at === null) { put(shown, h("p", { class: "empty error", role: "alert" }, level.value === "topic" ? "A topic is named tenant/namespace/topic." : "A namespace is named tenant/namespace.")); return; }
    try {
      const inForce = await api.get(at, { effective: true });
      const set = await api.get(at, { or_empty: true });
      const fields = await fieldsOfPolicy();
      // Answers may overtake each other: what was asked for last is shown.
      if (mine !== asked) return;
      put(shown, editor(level.value === "broker" ? "the broker" : name.value.trim(), at, fields, set, inForce, show));
    } catch (error) {
      put(shown, h("p", { class: "empty error", role: "alert" }, `That did not work: ${error.message}.`));
    }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); show(); });
  level.addEventListener("change", () => { name.value = level.value === "topic" ? "public/default/orders" : rights.everywhere ? "public/default" : rights.namespaces[0]; show(); });
  put(main, h("h1", {}, "Policies"), h("p", { class: "lead muted" }, "The nearest level that says anything wins: topic, namespace, broker."), h("section", { class: "card", "aria-label": "Place" }, form), shown);
  show();
}

function editor(place, at, fields, set, inForce, again) {
  const form = h("form", { class: "policy" },
    fields.map((field) => h("div", { class: "policy-row" },
      h("label", { for: `set-${field.name}` }, field.label + (UNITS[field.kind] ?? ""), h("span", { class: "muted", id: `about-${field.name}` }, field.about)),
      input(field, set[field.name]),
      h("p", {}, h("span", { class: "muted" }, "in force "), told(field, inForce[field.name])))),
    h("div", { class: "buttons" }, h("button", { class: "main", type: "submit" }, "Save"),
      Object.keys(set).length ? h("button", { class: "danger", type: "button", onclick: () => act("DELETE", undefined, "The policy is removed.") }, "Remove") : null));
  const act = async (method, body, said) => {
    try {
      await api.call(method, at, body);
      notice(said, "good");
      again();
    } catch (error) {
      notice(`That did not work: ${error.message}.`, "bad");
      if (error.field) document.getElementById(`set-${error.field}`)?.focus();
    }
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    // Only what was changed here: what somebody else has set meanwhile stays.
    const changed = fields.map((field) => [field.name, read(field)]).filter(([name, value]) => value !== (set[name] ?? null));
    if (!changed.length) { notice("Nothing was changed."); return; }
    act("PATCH", Object.fromEntries(changed), "The policy is set.");
  });
  return card(`Set for ${place}`, {}, form);
}
