// Who is there, and which view is shown.

import { api, every, Rights } from "./api.js";
import { commandFormPage } from "./command.js";
import { commandPage, commandsPage } from "./commands.js";
import { h, notice, options, put, tellHealth } from "./dom.js";
import { messagePage } from "./message.js";
import { messagesPage } from "./messages.js";
import { overviewPage } from "./overview.js";
import { pausesPage } from "./pauses.js";
import { policiesPage } from "./policies.js";
import { repeatFormPage } from "./repeat.js";
import { repeatPage, repeatsPage } from "./repeats.js";
import { address, here } from "./route.js";
import { schedulePage } from "./schedule.js";
import { topicPage } from "./topic.js";
import { topicsPage } from "./topics.js";
import { usualZones, zone, zones } from "./zone.js";

const ALL = () => true;
/** `one` is the view of one thing, named by what follows the page in the address; a page within another one has no way of its own in the bar. */
const PAGES = [
  { page: "", name: "Overview", show: overviewPage, may: ALL },
  { page: "messages", name: "Messages", show: messagesPage, one: messagePage, may: ALL },
  { page: "topics", name: "Topics", show: topicsPage, one: topicPage, may: ALL },
  { page: "repeats", name: "Repeats", show: repeatsPage, one: repeatPage, may: (rights) => rights.produce },
  { page: "repeat", name: "Repeat", show: repeatFormPage, one: repeatFormPage, may: (rights) => rights.produce, within: "repeats" },
  { page: "pauses", name: "Pauses", show: pausesPage, may: (rights) => rights.admin },
  { page: "commands", name: "Commands", show: commandsPage, one: commandPage, may: (rights) => rights.admin },
  { page: "command", name: "Command messages", show: commandFormPage, may: (rights) => rights.admin, within: "commands" },
  { page: "policies", name: "Policies", show: policiesPage, may: (rights) => rights.admin },
  { page: "schedule", name: "Schedule", show: schedulePage, may: (rights) => rights.produce },
];

const main = document.getElementById("main");
let rights = null;
let leave = () => {};
let shown = 0;

/** Show what the address names. A view is put into the page when it has its first figures, so that nothing moves while they come. */
async function show() {
  leave();
  leave = () => {};
  if (rights === null) return;
  const mine = shown += 1;
  const view = here();
  const pages = PAGES.filter((page) => page.may(rights));
  const page = pages.find((one) => one.page === view.page && (!view.rest.length || one.one));
  put(document.getElementById("nav"), pages.filter((one) => !one.within).map((one) =>
    h("a", { href: address(one.page), "aria-current": one.page === (page?.within ?? page?.page) ? "page" : null }, one.name)));
  document.title = page?.page ? `${view.rest.length ? `${view.rest.at(-1)} – ` : ""}${page.name} – Tarry` : "Tarry";
  if (!page) {
    put(main, h("h1", {}, "There is no such page"), h("p", { class: "empty" }, "It is not here, or not for your token."));
    return;
  }
  main.setAttribute("aria-busy", "true");
  /** A view that was left before its figures came is not shown. */
  const place = (...children) => { if (mine === shown) put(main, ...children); };
  const left = await (view.rest.length ? page.one : page.show)(place, rights, view);
  if (mine !== shown) { left(); return; }
  main.removeAttribute("aria-busy");
  leave = left;
}

function tellSession() {
  const session = document.getElementById("session");
  if (rights === null || rights.open) return put(session);
  return put(session,
    h("span", { class: "who" }, rights.name),
    rights.produce ? null : h("span", { class: "tag" }, "read only"),
    h("button", { class: "plain", type: "button", onclick: () => signOut() }, "Sign out"));
}

function tellZone() {
  const choice = h("select", { id: "zone", "aria-label": "Time zone", onchange: (event) => { zone.name = event.target.value; } },
    options(usualZones().map((one) => [one, one]), zone.name));
  // Four hundred names are only there for who asks for them.
  choice.addEventListener("focus", () => { put(choice, options(zones().map((one) => [one, one]), zone.name)); }, { once: true });
  put(document.getElementById("zones"), choice);
}

function signOut(reason) {
  api.token = null;
  rights = null;
  shown += 1;
  leave();
  leave = () => {};
  put(document.getElementById("nav"));
  tellSession();
  tellHealth(null, "Signed out");
  askForToken(reason);
}

function askForToken(reason) {
  const token = h("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false", "aria-describedby": reason ? "sign-in-error" : null });
  const form = h("form", { class: "card sign-in", "aria-labelledby": "sign-in" },
    h("h1", { id: "sign-in" }, "Sign in"),
    h("p", { class: "muted" }, "With one of the tokens in the server's configuration. It is forgotten when this tab is closed."),
    h("label", { for: "token" }, "Token"), token,
    reason ? h("p", { id: "sign-in-error", class: "error", role: "alert" }, reason) : null,
    h("button", { class: "main", type: "submit" }, "Sign in"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    api.token = token.value.trim();
    begin(true);
  });
  put(main, form);
  token.focus();
}

async function begin(tried = false) {
  try {
    rights = new Rights(await api.get("/v1/me"));
  } catch (error) {
    if (error.status === 401) return signOut(tried || api.token ? "This token is not known." : undefined);
    tellHealth(null, "No answer");
    put(main, h("p", { class: "empty" }, `The dashboard cannot begin: ${error.message}.`),
      h("p", { class: "empty" }, h("button", { type: "button", onclick: () => begin() }, "Try again")));
    return undefined;
  }
  tellSession();
  health();
  return show();
}

api.onSignedOut = () => { if (rights !== null) { notice("The token is not known any more.", "bad"); signOut(); } };
async function health() {
  const { ready, reasons } = await api.ready();
  if (rights !== null) tellHealth(ready === null ? false : ready, ready === null ? "No answer" : ready ? "Ready" : "Not ready", reasons);
}

zone.onChange = () => { show(); };
window.addEventListener("hashchange", () => { show().then(() => { main.focus(); window.scrollTo(0, 0); }); });
// Whoever closes the tab leaves its view too.
window.addEventListener("pagehide", () => leave());
window.addEventListener("pageshow", (event) => { if (event.persisted) show(); });
every(5000, health);
tellZone();
begin();
