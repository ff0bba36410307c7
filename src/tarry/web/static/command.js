// Ask for a command by filter: its messages are counted, and it is confirmed on its own page.

import { api } from "./api.js";
import { back, field, h, namespaceField, options, put } from "./dom.js";
import { ACTIONS, commandAddress } from "./commands.js";
import { FilterFields, commanded } from "./filter.js";
import { address, go } from "./route.js";
import { Time, sheet, text } from "./sheet.js";

const STATES = [["", "waiting"], ["retrying", "retrying"]];

export function commandFormPage(place, may, { asked }) {
  const namespace = may.everywhere
    ? text(asked, "namespace", "public/default", { value: asked.namespace ?? "public/default", required: true }) : namespaceField(may, asked.namespace);
  const filter = new FilterFields(may, asked, STATES, namespace);
  const what = h("select", { id: "action", onchange: () => arrange() },
    options(Object.entries(ACTIONS).map(([action, [name]]) => [action, name]), asked.action ?? (asked.state === "failed" ? "retry" : "cancel")));
  const when = h("div", { class: "row" });
  let time = null;
  const arrange = () => {
    time = { move: () => new Time(asked), retry: () => new Time(asked, ["now", "now"]) }[what.value]?.() ?? null;
    put(when, time?.elements ?? []);
    when.hidden = time === null;
    // Only failed messages are retried, and nothing else can be done to them.
    filter.state.hidden = what.value === "retry";
  };
  arrange();
  const ask = async () => {
    const action = what.value, said = filter.asked();
    const { id } = await api.call("POST", "/v1/commands", { action, filter: commanded(action === "retry" ? { ...said, state: "failed" } : said), ...time?.request() });
    go(commandAddress(id));
  };
  place(back("Commands", address("commands")), h("h1", {}, "Command messages"),
    h("p", { class: "lead muted" }, "The messages are counted first. Nothing is done before you confirm their number."),
    sheet("Command messages", "Count the messages", ask, field("What is done", what), when,
      h("h2", {}, "Messages"), h("div", { class: "row" }, filter.elements)));
  return () => {};
}
