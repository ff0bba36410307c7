// Addresses: every view has one, which can be kept, sent to somebody and gone back to. What is in it never leaves the browser.

/** The view that the address names: its page, what comes after it, and what is asked there. */
export function here() {
  const [path, query = ""] = location.hash.slice(1).split("?", 2);
  const parts = path.split("/").filter(Boolean).map((part) => {
    try { return decodeURIComponent(part); } catch { return part; }
  });
  return { page: parts[0] ?? "", rest: parts.slice(1), asked: Object.fromEntries(new URLSearchParams(query)), whole: location.hash };
}

/** The address of a view; what is empty is not asked. */
export function address(page, rest = [], asked = {}) {
  const query = new URLSearchParams(Object.entries(asked).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  return `#/${[page, ...rest].map(encodeURIComponent).join("/")}${query.size ? `?${query}` : ""}`;
}

/** Show a view, also one that is shown already. */
export function go(to) {
  if (location.hash === to) window.dispatchEvent(new Event("hashchange"));
  else location.hash = to;
}

/** Say in the address what is shown by now, without a step back to what was there before. */
export function tell(to) {
  history.replaceState(null, "", to);
}

/** A short name of a topic is made whole, as everywhere in Tarry. */
export function wholeDestination(text) {
  if (!text || text.includes("://")) return text;
  return `persistent://${text.split("/").length === 3 ? text : `public/default/${text}`}`;
}

export const messageAddress = (id) => address("messages", [id]);
/** The message that has a name in a namespace: unlike an id, this address lets nobody in. */
export const namedAddress = (namespace, name) => address("messages", [...namespace.split("/"), name]);
export const messagesAddress = (asked) => address("messages", [], asked);

const parts = (topic) => topic.replace(/^persistent:\/\//, "").split("/");
export const topicAddress = (topic, asked) => address("topics", parts(topic), asked);
