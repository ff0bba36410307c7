// Begin a repeat, or change one: it then begins anew, as it is asked for.

import { api } from "./api.js";
import { back, failed, field, h, notice, options } from "./dom.js";
import { spell } from "./format.js";
import { address, go } from "./route.js";
import { repeatAddress } from "./repeats.js";
import { Content, sheet, text } from "./sheet.js";
import { fromField, toField, zone, zones } from "./zone.js";

const MISSED = { latest: "send the latest late", all: "send all of them late", none: "send none of them" };

/** What the form begins with for a repeat that is there. */
function askedOf(repeat) {
  const { payload = "", headers } = repeat;
  const json = headers["content-type"] === "application/json";
  return {
    ...repeat, kind: json ? "json" : "text", payload, headers: Object.entries(headers).map((pair) => pair.join(": ")).join("\n"),
    every: repeat.every_ms ? spell(repeat.every_ms) : "", start: repeat.start_at_ms, end: repeat.end_at_ms, jitter: repeat.jitter_ms ? spell(repeat.jitter_ms) : "",
  };
}

export async function repeatFormPage(place, may, { rest, asked: given }) {
  const old = rest.length === 3;
  let asked = given;
  if (old) {
    try {
      const repeat = await api.get(`/v1/repeats/${rest.map(encodeURIComponent).join("/")}`);
      if (repeat.payload_base64 !== undefined) throw new Error("its payload is bytes, which this form cannot hold");
      asked = askedOf(repeat);
    } catch (error) {
      place(back("Repeats", address("repeats")), h("h1", {}, "Repeat"), failed(error, "There is no such repeat."));
      return () => {};
    }
  }
  const content = new Content(asked);
  const at = (id, ms) => h("input", { id, type: "datetime-local", step: "1", value: ms ? toField(Number(ms)) : "" });
  const name = text(asked, "name", "standup", { required: true, readonly: old });
  const namespace = text(asked, "namespace", "", { value: asked.namespace ?? (may.everywhere ? "public/default" : may.namespaces[0]), required: true, readonly: old });
  const how = h("select", { id: "how", onchange: () => arrange() }, options([["every", "by an interval"], ["cron", "by cron"]], asked.cron ? "cron" : "every"));
  const every = text(asked, "every", "1d", { value: asked.every || "1h" }), cron = text(asked, "cron", "30 8 * * mon-fri");
  const clock = h("select", { id: "clock" }, options(zones().map((one) => [one, one]), asked.zone ?? zone.name));
  const start = at("start", asked.start), end = at("end", asked.end);
  const most = text(asked, "count", "no end", { inputmode: "numeric", pattern: "[0-9]*" }), jitter = text(asked, "jitter", "none");
  const missed = h("select", { id: "missed" }, options(Object.entries(MISSED), asked.missed ?? "latest"));
  const everyField = field("Every (w d h m s ms)", every), cronField = field("Cron, five or six fields", cron), clockField = field("On the clock of", clock);
  const arrange = () => { everyField.hidden = how.value !== "every"; cronField.hidden = clockField.hidden = how.value !== "cron"; };
  arrange();
  const begin = async () => {
    const path = [...namespace.value.trim().split("/"), name.value.trim()].map(encodeURIComponent).join("/");
    const made = await api.send("PUT", `/v1/repeats/${path}`, content.request({
      ...(how.value === "every" ? { every: every.value.trim() } : { cron: cron.value.trim(), zone: clock.value }),
      start_at_ms: fromField(start.value) ?? undefined, end_at_ms: fromField(end.value) ?? undefined,
      count: Number(most.value) || undefined, jitter: jitter.value.trim(), missed: missed.value,
    }));
    notice(old ? "The repeat begins anew." : "The repeat begins.", "good");
    go(repeatAddress(made));
  };
  place(back("Repeats", address("repeats")), h("h1", {}, old ? `Change ${asked.name}` : "Begin a repeat"),
    sheet("Repeat", old ? "Begin anew" : "Begin", begin,
      h("div", { class: "row" }, field("Name", name), field("Namespace", namespace)),
      content.where, h("div", { class: "row" }, field("How often", how), everyField, cronField, clockField),
      content.what,
      h("details", { open: old }, h("summary", {}, "More"), h("div", { class: "row" },
        field(`Not before, ${zone.name}`, start), field("Not after", end), field("How many in all", most), field("Jitter", jitter), field("If some are missed", missed)), content.more)));
  return () => {};
}
