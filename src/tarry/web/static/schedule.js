// Schedule a message by hand. The form can be filled by its address, so that a way to it can be kept.

import { api } from "./api.js";
import { field, h, notice, options } from "./dom.js";
import { go, messageAddress, wholeDestination } from "./route.js";
import { Content, Time, sheet, text } from "./sheet.js";

export function schedulePage(place, may, { asked }) {
  const content = new Content(asked);
  const time = new Time(asked);
  const name = text(asked, "name", "trial-42");
  const conflict = h("select", { id: "on_conflict" }, options([["fail", "refuse this one"], ["keep", "keep that one"], ["replace", "replace that one"]], asked.on_conflict ?? "fail"));
  const namespace = text(asked, "namespace", may.everywhere ? "public/default" : may.namespaces[0]);
  const schedule = async () => {
    const toTopic = wholeDestination(content.destination.value.trim()).startsWith("persistent://");
    const { id } = await api.send("POST", "/v1/messages", content.request({
      ...time.request(),
      ...(name.value.trim() ? { name: name.value.trim(), on_conflict: conflict.value } : {}),
      namespace: toTopic ? "" : namespace.value.trim(),
    }));
    notice("The message is scheduled.", "good");
    go(messageAddress(id));
  };
  place(h("h1", {}, "Schedule a message"),
    sheet("Schedule a message", "Schedule", schedule, content.where,
      h("div", { class: "row" }, time.elements), content.what,
      h("details", { open: Boolean(asked.name || asked.headers) }, h("summary", {}, "More"),
        h("div", { class: "row" }, field("Name, unique among those that wait", name), field("If one of this name waits", conflict)),
        content.more, field("Namespace, where the destination is no topic", namespace, "grows"))));
  return () => {};
}
