// Elements without markup in strings: nothing that a client has named can ever become an element or a script.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" && "value" in element) element.value = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

export function put(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A table whose first row names the columns; `rows` are lists of cells, `about` says what it is to who cannot see it.
 *  With many columns of text each row stands as a block of its own on a narrow screen: its first two cells, and the others named. */
export function table(about, columns, rows) {
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": about },
    h("table", { class: columns.filter(([, kind]) => !kind).length > 2 ? "stacks" : null },
      h("caption", { class: "unseen" }, about),
      h("thead", {}, h("tr", {}, columns.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))),
      h("tbody", {}, rows.map((cells) =>
        h("tr", {}, cells.map((cell, column) => h("td", { class: `${columns[column][1]} ${cell === "–" ? "none" : ""}`, "data-column": columns[column][0] }, cell)))))));
}

/** A card with a heading; what is in it is labelled by that heading. */
export function card(title, attributes, ...children) {
  const id = `card-${title.toLowerCase().replace(/[^a-z]+/g, "-")}`;
  const { aside, ...rest } = attributes ?? {};
  return h("section", { ...rest, class: `card ${rest.class ?? ""}`, "aria-labelledby": id },
    h("div", { class: "card-head" }, h("h2", { id }, title), aside ?? null), ...children);
}

/** What is known of something; what is not known of it is left out. */
export function facts(pairs) {
  return h("dl", { class: "facts" },
    pairs.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value, kind]) => h("div", {}, h("dt", {}, name), h("dd", { class: kind ?? null }, value))));
}

/** A field with its label. */
export function field(label, input, kind = "") {
  return h("div", { class: `field ${kind}` }, h("label", { for: input.id }, label), input);
}

/** Options of a select, as [value, name], with one chosen. */
export const options = (all, chosen) => all.map(([value, name]) => h("option", { value, selected: value === chosen }, name));

/** A namespace: any for who reaches all of them, else one of those. */
export function namespaceField(may, value) {
  return may.everywhere
    ? h("input", { id: "namespace", autocomplete: "off", spellcheck: "false", placeholder: "any", value: value ?? "" })
    : h("select", { id: "namespace" }, options(may.namespaces.map((one) => [one, one]), value ?? may.namespaces[0]));
}

/** The way back to a list. */
export const back = (name, href) => h("p", { class: "back" }, h("a", { href }, `‹ ${name}`));

/** What is said where something cannot be shown. */
export function failed(error, absent = null) {
  return h("p", { class: "empty error", role: "alert" }, absent && error.status === 404 ? absent : `That did not work: ${error.message}.`);
}

/** A text with a button that copies it. */
export function copyable(text) {
  return [h("code", {}, text), h("button", { class: "plain small", type: "button", onclick: () => navigator.clipboard.writeText(text).then(() => notice("Copied."), () => notice("The browser does not let this page copy.", "bad")) }, "Copy")];
}

/** Ask before something is done, in a place for questions; nothing is changed by Enter yet. */
export function ask(place, text, yes, run, { danger = true } = {}) {
  const question = h("p", { tabindex: "-1" }, text);
  put(place, question, h("div", { class: "buttons" },
    h("button", { class: `main ${danger ? "danger" : ""}`, type: "button", onclick: run }, yes),
    h("button", { type: "button", onclick: () => put(place) }, "Leave it")));
  question.focus();
}

let notices = 0;

/** Say something in passing. */
export function notice(text, kind = "") {
  const shown = h("p", { class: `notice ${kind}`, id: `notice-${++notices}` }, text);
  document.getElementById("notices").append(shown);
  setTimeout(() => shown.remove(), kind === "bad" ? 10000 : 5000);
}

/** Say in the bar how the server is: well, not well, or nobody knows. */
export function tellHealth(ready, text, reasons = []) {
  const shown = document.getElementById("health");
  const kind = ready === null ? "unknown" : ready ? "good" : "bad";
  shown.title = reasons.join("; ");
  // Only what has changed is said again to who listens.
  if (shown.dataset.said === kind + text) return;
  shown.dataset.said = kind + text;
  put(shown, h("span", { class: `dot ${kind}`, "aria-hidden": "true" }), text);
}
