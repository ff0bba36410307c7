// Numbers, sizes, durations and instants for people. Instants are shown in the reader's own time zone.

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
  const at = new Date(ms);
  return `${two(at.getHours())}:${two(at.getMinutes())}${withSeconds ? `:${two(at.getSeconds())}` : ""}`;
}

export function day(ms, withYear = false) {
  const at = new Date(ms);
  return `${at.getDate()} ${MONTHS[at.getMonth()]}${withYear ? ` ${at.getFullYear()}` : ""}`;
}

/** An instant in full. */
export function instant(ms) {
  if (ms === null || ms === undefined) return "–";
  return `${day(ms, true)}, ${clock(ms, true)}`;
}

/** How far away an instant is. */
export function away(ms, nowMs) {
  if (ms === null || ms === undefined) return "–";
  const left = ms - nowMs;
  return left >= 0 ? `in ${duration(left)}` : `${duration(-left)} ago`;
}

/** A topic's name as people say it. */
export const topicName = (full) => full.replace(/^persistent:\/\//, "").replace(/^public\/default\//, "");
