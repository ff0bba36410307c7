// Who is there, and which page is shown.

import { api, Rights } from "./api.js";
import { h, notice, put, tellHealth } from "./dom.js";
import { messagesPage } from "./messages.js";
import { overviewPage } from "./overview.js";
import { policiesPage } from "./policies.js";

const PAGES = [
  { path: "#/", name: "Overview", show: overviewPage, may: () => true },
  { path: "#/messages", name: "Messages", show: messagesPage, may: () => true },
  { path: "#/policies", name: "Policies", show: policiesPage, may: (rights) => rights.admin },
];

const main = document.getElementById("main");
let rights = null;
let leave = () => {};

function show() {
  leave();
  leave = () => {};
  if (rights === null) return;
  const pages = PAGES.filter((page) => page.may(rights));
  const page = pages.find((one) => one.path === location.hash) ?? pages[0];
  put(document.getElementById("nav"), pages.map((one) =>
    h("a", { href: one.path, "aria-current": one === page ? "page" : null }, one.name)));
  document.title = page === pages[0] ? "Tarry" : `${page.name} – Tarry`;
  put(main);
  leave = page.show(main, rights) ?? (() => {});
}

function tellSession() {
  const shown = document.getElementById("session");
  if (rights === null || rights.open) return put(shown);
  return put(shown,
    h("span", { class: "who" }, rights.name),
    rights.produce ? null : h("span", { class: "tag" }, "read only"),
    h("button", { class: "plain", type: "button", onclick: () => signOut() }, "Sign out"));
}

function signOut(reason) {
  api.token = null;
  rights = null;
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
  show();
  return undefined;
}

api.onSignedOut = () => { if (rights !== null) { notice("The token is not known any more.", "bad"); signOut(); } };
window.addEventListener("hashchange", () => { show(); main.focus(); });
begin();
