// The native API, with the token of this tab. The token is kept in the tab's session storage and sent as a header, never in an address.

const KEY = "tarry.token";

class Refused extends Error {
  constructor(status, problem) {
    super(problem.detail ?? problem.title ?? `the server answered ${status}`);
    this.status = status;
    this.code = problem.code ?? "";
    this.field = problem.field ?? "";
  }
}

export const api = {
  /** Called when the token is not, or no longer, known. */
  onSignedOut: () => {},

  get token() { return sessionStorage.getItem(KEY); },
  set token(value) {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  },

  /** The answer to a call, its body a value that is sent as JSON. */
  call(method, path, body) { return this.send(method, path, body === undefined ? undefined : JSON.stringify(body)); },

  /** The answer to a call whose body is JSON already. */
  async send(method, path, body) {
    const answer = await this.ask(method, path, body);
    return answer.status === 204 ? null : answer.json();
  },

  /** A stream, as it comes. */
  stream(path, signal) { return this.ask("GET", path, undefined, signal); },

  async ask(method, path, body, signal) {
    const headers = {};
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    if (body !== undefined) headers["content-type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, { method, headers, body, signal, cache: "no-store", keepalive: method === "DELETE" });
    } catch {
      throw new Refused(0, { detail: "the server does not answer", code: "unreachable" });
    }
    if (answer.ok) return answer;
    const problem = await answer.json().catch(() => ({}));
    if (answer.status === 401) this.onSignedOut();
    throw new Refused(answer.status, problem);
  },

  /** Whether the server is ready, and why not: true and false, or null if it does not answer. */
  async ready() {
    try {
      const answer = await fetch("/readyz", { cache: "no-store" });
      return await answer.json();
    } catch {
      return { ready: null, reasons: ["the server does not answer"] };
    }
  },

  get(path, query) {
    const asked = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value !== null && value !== undefined && value !== ""));
    return this.call("GET", asked.size ? `${path}?${asked}` : path);
  },
};

/** What the token may do. */
export class Rights {
  constructor(me) {
    this.name = me.name;
    this.open = me.open;
    this.everywhere = me.namespaces === null;
    this.namespaces = me.namespaces ?? [];
    this.admin = me.roles.includes("admin");
    this.produce = this.admin || me.roles.includes("produce");
    this.consume = this.admin || me.roles.includes("consume");
  }
}

/** Ask again and again while the page is looked at, for the first time after that long; gives a function that stops it. */
export function every(ms, ask) {
  let timer = null;
  let stopped = false;
  const turn = async () => {
    if (stopped) return;
    if (!document.hidden) await ask();
    if (!stopped) timer = setTimeout(turn, ms);
  };
  const seen = () => { if (!document.hidden && timer) { clearTimeout(timer); turn(); } };
  document.addEventListener("visibilitychange", seen);
  timer = setTimeout(turn, ms);
  return () => { stopped = true; clearTimeout(timer); document.removeEventListener("visibilitychange", seen); };
}
