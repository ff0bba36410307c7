// Schedule a message by hand. The form can be filled by its address, so that a way to it can be kept.

import { api } from "./api.js";
import { field, h, notice, options } from "./dom.js";
import { go, messageAddress, wholeDestination } from "./route.js";
import { Content, sheet, text } from "./sheet.js";
import { fromField, toField, zone } from "./zone.js";

export function schedulePage(place, may, { asked }) {
  const content = new Content(asked);
  const when = h("select", { id: "when", onchange: () => arrange() }, options([["delay", "after a delay"], ["due", "at an instant"]], asked.due ? "due" : "delay"));
  const delay = text(asked, "delay", "1h30m", { value: asked.delay ?? "1h" });
  const due = h("input", { id: "due", type: "datetime-local", step: "1", value: toField(Number(asked.due) || Date.now() + 3600000) });
  const name = text(asked, "name", "trial-42");
  const conflict = h("select", { id: "on_conflict" }, options([["fail", "refuse this one"], ["keep", "keep that one"], ["replace", "replace that one"]], asked.on_conflict ?? "fail"));
  const namespace = text(asked, "namespace", may.everywhere ? "public/default" : may.namespaces[0]);
  const delayField = field("Delay (w d h m s ms)", delay), dueField = field(`Due at, ${zone.name}`, due);
  const arrange = () => { delayField.hidden = when.value !== "delay"; dueField.hidden = when.value !== "due"; };
  arrange();
  const schedule = async () => {
    const toTopic = wholeDestination(content.destination.value.trim()).startsWith("persistent://");
    const { id } = await api.send("POST", "/v1/messages", content.request({
      ...(when.value === "delay" ? { delay: delay.value.trim() } : { due_at_ms: fromField(due.value) }),
      ...(name.value.trim() ? { name: name.value.trim(), on_conflict: conflict.value } : {}),
      namespace: toTopic ? "" : namespace.value.trim(),
    }));
    notice("The message is scheduled.", "good");
    go(messageAddress(id));
  };
  place(h("h1", {}, "Schedule a message"),
    sheet("Schedule a message", "Schedule", schedule, content.where,
      h("div", { class: "row" }, field("When", when), delayField, dueField), content.what,
      h("details", { open: Boolean(asked.name || asked.headers) }, h("summary", {}, "More"),
        h("div", { class: "row" }, field("Name, unique among those that wait", name), field("If one of this name waits", conflict)),
        content.more, field("Namespace, where the destination is no topic", namespace, "grows"))));
  return () => {};
}
