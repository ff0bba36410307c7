// Pauses: topics, owners and destinations whose messages wait once they are due, until somebody resumes them.

import { api } from "./api.js";
import { failed, field, h, notice, options, put, table } from "./dom.js";
import { away, instant, topicName } from "./format.js";
import { address, messagesAddress, tell, topicAddress, wholeDestination } from "./route.js";
import { sheet, text } from "./sheet.js";

const KINDS = { topic: "a topic", owner: "an owner", destination: "a destination, or all of a host" };
const PLACEHOLDERS = { topic: "orders", owner: "shop", destination: "https://…" };

/** The way to the page that pauses a place. */
export const pauseAddress = (kind, name, namespace) => address("pauses", [], { [kind]: name, namespace: kind === "topic" ? null : namespace });

/** All pauses within reach. */
export async function pausesOf(may, namespace = null) {
  const asked = namespace ? [namespace] : may.everywhere ? [null] : may.namespaces;
  return (await Promise.all(asked.map((one) => api.get("/v1/pauses", { namespace: one })))).flatMap(({ pauses }) => pauses);
}

/** Pause or resume a place, as the API names it. */
const command = (place, resume) => api.call("POST", `/v1/pauses${resume ? "/resume" : ""}`,
  place.kind === "topic" ? { topic: place.name } : { [place.kind]: place.name, namespace: place.namespace });

/** A button that resumes or pauses a place, and what is then to be shown. */
export function pauseButton(place, paused, then) {
  const act = async (event) => {
    event.target.disabled = true;
    try {
      await command(place, paused);
      notice(paused ? `${place.name} goes on.` : `${place.name} is paused.`, "good");
    } catch (error) {
      notice(`That did not work: ${error.message}.`, "bad");
    }
    then();
  };
  return h("button", { class: paused ? "main" : null, type: "button", onclick: act }, paused ? "Resume" : "Pause");
}

const messagesOf = ({ kind, name, namespace }) => messagesAddress(kind === "owner" ? { owner: name, namespace } : { destination: topicName(name) });

function list(pauses, again) {
  const now = Date.now();
  if (!pauses.length) return h("p", { class: "empty" }, "Nothing is paused.");
  return table("Paused places", [["Place", ""], ["State", ""], ["Kind", ""], ["Namespace", ""], ["Since", ""], ["Messages", ""], ["Command", ""]], pauses.map((one) => [
    one.kind === "topic" ? h("a", { href: topicAddress(one.name) }, topicName(one.name)) : one.name,
    h("span", { class: `state ${one.resumed ? "sending" : "paused"}` }, one.resumed ? "on their way back" : "paused"),
    one.kind, one.namespace, h("span", { title: instant(one.since_ms) }, away(one.since_ms, now)), h("a", { href: messagesOf(one) }, "List them"),
    one.resumed ? "–" : pauseButton(one, true, again),
  ]));
}

export async function pausesPage(place, may, { asked }) {
  const shown = h("section", { class: "card", "aria-label": "Paused" });
  let left = false;
  const show = async () => {
    try {
      const pauses = await pausesOf(may);
      if (!left) put(shown, list(pauses, show));
    } catch (error) {
      put(shown, failed(error));
    }
  };
  const chosen = Object.keys(KINDS).find((kind) => asked[kind]) ?? "topic";
  const kind = h("select", { id: "kind", onchange: () => arrange() }, options(Object.entries(KINDS), chosen));
  const name = text({}, "place", "", { required: true, value: asked[chosen] ?? "" });
  const namespace = text(asked, "namespace", may.everywhere ? "public/default" : may.namespaces[0]);
  const namespaceField = field("Namespace", namespace);
  const arrange = () => { namespaceField.hidden = kind.value === "topic"; name.placeholder = PLACEHOLDERS[kind.value]; };
  arrange();
  const pause = async () => {
    const said = name.value.trim();
    await command({ kind: kind.value, name: kind.value === "topic" ? wholeDestination(said) : said, namespace: namespace.value.trim() || (may.everywhere ? undefined : may.namespaces[0]) });
    notice(`${said} is paused.`, "good");
    name.value = "";
    tell(address("pauses"));
    await show();
  };
  await show();
  place(h("h1", {}, "Pauses"),
    h("p", { class: "lead muted" }, "What is paused takes messages and keeps them, also once they are due. Resumed, they go out in the order in which they were held. ",
      may.produce ? h("a", { href: address("repeats") }, "Repeats") : "Repeats", " and single messages are paused on their own pages."),
    shown, sheet("Pause a place", "Pause", pause, h("h2", {}, "Pause a place"), h("div", { class: "row" }, field("What", kind), field("Name", name), namespaceField)));
  return () => { left = true; };
}
