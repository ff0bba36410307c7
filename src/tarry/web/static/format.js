// Numbers, sizes, durations and instants for people. Instants are shown in the time zone that was chosen.

import { fields } from "./zone.js";

const plain = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const SECOND = 1000, MINUTE = 60 * SECOND, HOUR = 60 * MINUTE, DAY = 24 * HOUR;

export const count = (value) => plain.format(value);

/** 1234567 as 1.2M; what is below a bound is told exactly. */
export const compact = (value, exactBelow = 10000) => (Math.abs(value) < exactBelow ? plain.format(value) : short.format(value));

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${value < 10 && at ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

/** The two largest units that say it. */
export function duration(ms) {
  if (ms < 0) return `−${duration(-ms)}`;
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < 10 * SECOND) return `${(ms / SECOND).toFixed(1)} s`;
  const units = [["d", DAY], ["h", HOUR], ["min", MINUTE], ["s", SECOND]];
  const parts = [];
  for (const [name, size] of units) {
    if (ms >= size || parts.length) {
      const whole = Math.floor(ms / size);
      if (whole || !parts.length) parts.push(`${whole} ${name}`);
      ms -= whole * size;
      if (parts.length === 2 || name === "s") break;
    }
  }
  return parts.slice(0, 2).join(" ");
}

/** The name of a slot's size. */
export function sizeName(ms) {
  const names = new Map([[365 * DAY, "Year"], [30 * DAY, "30 days"], [DAY, "Day"], [HOUR, "Hour"], [5 * MINUTE, "Five minutes"], [MINUTE, "Minute"]]);
  return names.get(ms) ?? duration(ms);
}

const two = (value) => String(value).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

export function clock(ms, withSeconds = false) {
  const at = fields(ms);
  return `${two(at.hour)}:${two(at.minute)}${withSeconds ? `:${two(at.second)}` : ""}`;
}

export function day(ms, withYear = false) {
  const at = fields(ms);
  return `${at.day} ${MONTHS[at.month - 1]}${withYear ? ` ${at.year}` : ""}`;
}

/** An instant in full. */
export function instant(ms) {
  if (ms === null || ms === undefined) return "–";
  return `${day(ms, true)}, ${clock(ms, true)}`;
}

/** An instant in full, to the millisecond. */
export const precise = (ms) => `${instant(ms)}.${String(((ms % SECOND) + SECOND) % SECOND).padStart(3, "0")}`;

/** How far away an instant is. */
export function away(ms, nowMs) {
  if (ms === null || ms === undefined) return "–";
  const left = ms - nowMs;
  return left >= 0 ? `in ${duration(left)}` : `${duration(-left)} ago`;
}

/** A topic's name as people say it. */
export const topicName = (full) => full.replace(/^persistent:\/\//, "").replace(/^public\/default\//, "");

const UNITS = [["w", 7 * DAY], ["d", DAY], ["h", HOUR], ["m", MINUTE], ["s", SECOND], ["ms", 1]];

/** A duration exactly, as it is typed: 90000 is 1m30s. Weeks are told only where they are whole. */
export function spell(ms) {
  if (ms <= 0) return String(ms);
  if (ms % (7 * DAY) === 0) return `${ms / (7 * DAY)}w`;
  return UNITS.slice(1).map(([name, size]) => { const whole = Math.floor(ms / size); ms -= whole * size; return whole ? `${whole}${name}` : ""; }).join("");
}

/** The duration that was typed, like 1h30m, or a number of milliseconds; null for anything else. */
export function typed(text) {
  if (/^-?\d+$/.test(text)) return Number(text);
  const found = /^(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?$/.exec(text.replace(/\s/g, ""));
  if (!text || !found) return null;
  return UNITS.reduce((sum, [, size], at) => sum + Number(found[at + 1] ?? 0) * size, 0);
}

/** JSON with its lines indented, every number and text as it was written; null for what is no JSON. */
export function indented(text) {
  try { JSON.parse(text); } catch { return null; }
  const tokens = text.match(/"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s{}[\],:"]+/g) ?? [];
  let depth = 0, line = "";
  tokens.forEach((token, at) => {
    const next = tokens[at + 1];
    const open = token === "{" || token === "[", empty = open && (next === "}" || next === "]");
    if (token === "}" || token === "]") {
      depth -= 1;
      if (!["{", "["].includes(tokens[at - 1])) line += `\n${"  ".repeat(depth)}`;
    }
    line += token === ":" ? ": " : token;
    if (open) depth += 1;
    if (token === "," || (open && !empty)) line += `\n${"  ".repeat(depth)}`;
  });
  return line;
}
