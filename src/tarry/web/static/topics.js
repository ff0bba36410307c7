// Topics: which there are, and how far behind their subscriptions.

import { api } from "./api.js";
import { failed, field, h, table } from "./dom.js";
import { count, topicName } from "./format.js";
import { address, go, topicAddress } from "./route.js";

const SHOWN = 500;
const SUBSCRIPTIONS = 1000;

/** Names with the figures of their subscriptions; who may not list topics sees those that somebody subscribes to. */
async function topicsOf(may) {
  const behind = await api.get("/v1/backlogs", { limit: SUBSCRIPTIONS });
  const named = may.admin ? await Promise.all((may.everywhere ? [null] : may.namespaces).map((namespace) => api.get("/v1/topics", { namespace }))) : [];
  const topics = new Map(named.flatMap(({ topics: names }) => names).map((name) => [name, { subscriptions: 0, backlog: 0 }]));
  for (const { topic, figures } of behind.subscriptions) {
    const of = topics.get(topic) ?? { subscriptions: 0, backlog: 0 };
    topics.set(topic, { subscriptions: of.subscriptions + 1, backlog: of.backlog + figures.backlog });
  }
  return [...topics].sort(([a], [b]) => a.localeCompare(b));
}

export async function topicsPage(place, may, { asked }) {
  const head = h("h1", {}, "Topics");
  const find = h("input", { id: "find", type: "search", autocomplete: "off", spellcheck: "false", placeholder: "a part of the name", value: asked.find ?? "" });
  const form = h("form", { class: "search", role: "search" }, field("Name", find, "grows"), h("button", { class: "main", type: "submit" }, "Search"));
  form.addEventListener("submit", (event) => { event.preventDefault(); go(address("topics", [], { find: find.value.trim() })); });
  let all;
  try {
    all = await topicsOf(may);
  } catch (error) {
    place(head, failed(error));
    return () => {};
  }
  const found = all.filter(([name]) => name.includes(asked.find ?? ""));
  place(head, h("section", { class: "card", "aria-label": "Search" }, form),
    h("section", { class: "card", "aria-label": "Found" },
      found.length
        ? table("Topics", [["Topic", ""], ["Subscriptions", "number"], ["Backlog", "number"]],
          found.slice(0, SHOWN).map(([name, of]) => [h("a", { href: topicAddress(name) }, topicName(name)), count(of.subscriptions), of.subscriptions ? count(of.backlog) : "–"]))
        : h("p", { class: "empty" }, asked.find ? "Nothing was found." : "There are no topics yet. One is made when somebody publishes to it or subscribes."),
      found.length > SHOWN ? h("p", { class: "muted" }, `${count(found.length - SHOWN)} more: search for a part of the name.`) : null,
      may.admin ? null : h("p", { class: "muted" }, "Topics that nobody subscribes to are listed to tokens with the role admin.")));
  return () => {};
}
