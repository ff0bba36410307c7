// The time zone in which instants are shown and typed: the reader's own, unless another one is chosen.

const KEY = "tarry.zone";
const OWN = Intl.DateTimeFormat().resolvedOptions().timeZone;
const formats = new Map();

/** Whether this browser knows a zone: what it was told by another version may be none. */
function known(name) {
  try { return Boolean(Intl.DateTimeFormat("en", { timeZone: name })); } catch { return false; }
}

export const zone = {
  /** Called when another zone is chosen. */
  onChange: () => {},

  get name() {
    const chosen = localStorage.getItem(KEY);
    return chosen && known(chosen) ? chosen : OWN;
  },
  set name(value) {
    if (value === OWN) localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, value);
    this.onChange();
  },
};

/** The likely zones. */
export const usualZones = () => [...new Set([OWN, "UTC", zone.name])];

/** All zones that can be chosen, the likely ones first. */
export const zones = () => [...new Set([...usualZones(), ...(Intl.supportedValuesOf?.("timeZone") ?? [])])];

function format() {
  const { name } = zone;
  if (!formats.has(name)) {
    const fields = { year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric" };
    formats.set(name, new Intl.DateTimeFormat("en-US", { timeZone: name, hourCycle: "h23", ...fields }));
  }
  return formats.get(name);
}

/** Year, month (from 1), day, hour, minute and second of an instant. */
export function fields(ms) {
  return Object.fromEntries(format().formatToParts(ms).filter(({ type }) => type !== "literal").map(({ type, value }) => [type, Number(value)]));
}

/** How far the zone's clocks are ahead of UTC at an instant. */
export function offset(ms) {
  const { year, month, day, hour, minute, second } = fields(ms);
  return Date.UTC(year, month - 1, day, hour, minute, second) - Math.floor(ms / 1000) * 1000;
}

/** The instant that a field for date and time says; null for none. */
export function fromField(text) {
  const wall = Date.parse(`${text}Z`);
  if (Number.isNaN(wall)) return null;
  // The offset is that of the instant which is looked for: the second guess is right, but for hours that a clock leaves out.
  const guess = wall - offset(wall);
  return wall - offset(guess);
}

/** An instant as a field for date and time takes it, to the second. */
export function toField(ms) {
  return new Date(ms + offset(ms)).toISOString().slice(0, 19);
}
