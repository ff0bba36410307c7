/** The client: scheduling and commanding messages, and consuming topics. */

import createApi, { type Client as Api } from "openapi-fetch";

import { type Problem, TarryError, Unreachable } from "./errors.js";
import { bytesOf, type Payload, payloadFields, timeFields, type When } from "./payload.js";
import type { components, operations, paths } from "./schema.js";
import { namePath, topicPath, type Which } from "./topic.js";

type Schemas = components["schemas"];

export type Scheduled = Schemas["ScheduledAnswer"];
export type Message = Schemas["MessageAnswer"] & { readonly bytes: Uint8Array };
export type Entry = Schemas["EntryAnswer"] & { readonly bytes: Uint8Array };
export type ListFilters = NonNullable<operations["listMessages"]["parameters"]["query"]>;
export type SubscribeOptions = Partial<Schemas["SubscribeRequest"]>;

export interface ClientOptions {
  /** The server's address. Else `TARRY_URL`, else this machine. */
  readonly url?: string;
  /** Else `TARRY_TOKEN`. */
  readonly token?: string;
  /** For how long a call that cannot do anything twice is tried again after a broken connection (5,000). */
  readonly retryForMs?: number;
  /** Another `fetch`, for a proxy or a certificate of your own. */
  readonly fetch?: (request: Request) => Promise<Response>;
}

export interface ScheduleOptions extends When {
  /** A name of your own, by which the message is found again; unique among those that wait in its namespace. */
  readonly name?: string;
  /** What happens if a message that waits has the name: it is refused (`fail`, or nothing), kept, or replaced. */
  readonly onConflict?: "fail" | "keep" | "replace";
  readonly key?: string;
  readonly owner?: string;
  readonly group?: string;
  readonly namespace?: string;
  readonly ttlMs?: number;
  readonly headers?: Readonly<Record<string, string>>;
  /** Makes a repeated schedule give the first answer again; without one a random key covers the client's own repeats. */
  readonly idempotencyKey?: string;
}

export interface ReceiveOptions {
  readonly max?: number;
  readonly waitMs?: number;
  readonly consumer?: string;
  readonly signal?: AbortSignal;
}

type Command = "cancel" | "send" | "restart" | "retry" | "pause" | "resume";

interface Answered<T> {
  readonly data?: T;
  readonly error?: unknown;
  readonly response: Response;
}

const FIRST_WAIT_MS = 50;
const LONGEST_WAIT_MS = 1_000;

/** A connection to a Tarry server. It holds no state but its address: there is nothing to close. */
export class Client {
  /** Every operation of the API, typed from its OpenAPI document; refusals are in `error`. */
  readonly api: Api<paths>;
  readonly #retryForMs: number;

  constructor(options: ClientOptions = {}) {
    const environment = typeof process === "undefined" ? {} : process.env;
    const token = options.token ?? environment["TARRY_TOKEN"];
    this.#retryForMs = options.retryForMs ?? 5_000;
    this.api = createApi<paths>({
      baseUrl: options.url ?? environment["TARRY_URL"] ?? "http://127.0.0.1:8080",
      ...(token ? { headers: { authorization: `Bearer ${token}` } } : {}),
      ...(options.fetch ? { fetch: options.fetch } : {}),
    });
  }

  /** Schedule a message; resolves once it is on disk. After a broken connection it is tried again, and scheduled once. */
  async schedule(destination: string, payload: Payload, options: ScheduleOptions = {}): Promise<Scheduled> {
    const { name, onConflict, key, owner, group, namespace, ttlMs, headers, idempotencyKey = crypto.randomUUID() } = options;
    const body = {
      destination,
      ...payloadFields(payload),
      ...timeFields(options),
      ...defined({ name, on_conflict: onConflict, key, owner, group, namespace, ttl_ms: ttlMs, headers }),
    };
    return this.#repeat(() =>
      this.api.POST("/v1/messages", { params: { header: { "Idempotency-Key": idempotencyKey } }, body }),
    );
  }

  /** Look at a message. */
  async get(which: Which): Promise<Message> {
    const look = () =>
      typeof which === "string"
        ? this.api.GET("/v1/messages/{id}", { params: { path: { id: which } } })
        : this.api.GET("/v1/names/{tenant}/{namespace}/{message}", { params: { path: namePath(which) } });
    return withBytes(await this.#repeat(look));
  }

  /** Cancel a message that is not sent yet. */
  cancel(which: Which): Promise<Message> {
    return this.#command(which, "cancel");
  }

  /** Send a message now, whenever it is due. */
  send(which: Which): Promise<Message> {
    return this.#command(which, "send");
  }

  /** Begin the delay again, or give the message another time. */
  restart(which: Which, when: When = {}): Promise<Message> {
    return this.#command(which, "restart", timeFields(when));
  }

  /** Send a message once more that has failed, now or at a new time. */
  retry(which: Which, when: When = {}): Promise<Message> {
    return this.#command(which, "retry", timeFields(when));
  }

  /** Pause a message: what is left of its delay goes on when it is resumed. */
  pause(which: Which): Promise<Message> {
    return this.#command(which, "pause");
  }

  /** Let a paused message go on. */
  resume(which: Which): Promise<Message> {
    return this.#command(which, "resume");
  }

  /** Messages that the filters choose, over as many pages as it takes. */
  async *list(filters: ListFilters = {}): AsyncGenerator<Message, void, undefined> {
    let page: string | null | undefined = filters.page;
    do {
      const query: ListFilters = page ? { ...filters, page } : filters;
      const found = await this.#repeat(() => this.api.GET("/v1/messages", { params: { query } }));
      yield* found.messages.map(withBytes);
      page = found.next_page;
    } while (page);
  }

  /** Publish an entry to a topic, at once or with a delay; gives its entry id. */
  async publish(topic: string, payload: Payload, options: When & Pick<ScheduleOptions, "key" | "headers"> = {}): Promise<number> {
    const body = {
      ...payloadFields(payload),
      ...timeFields(options),
      ...defined({ key: options.key, headers: options.headers }),
    };
    const params = { path: topicPath(topic) };
    const answer = await this.#once(this.api.POST("/v1/topics/{tenant}/{namespace}/{topic}/messages", { params, body }));
    return answer.entry_ids[0] as number;
  }

  /** Make a subscription, unless it is there. */
  async subscribe(topic: string, name: string, options: SubscribeOptions = {}): Promise<void> {
    const params = { path: { ...topicPath(topic), name } };
    const path = "/v1/topics/{tenant}/{namespace}/{topic}/subscriptions/{name}";
    await this.#repeat(() => this.api.PUT(path, { params, body: options as Schemas["SubscribeRequest"] }));
  }

  /** Entries of a subscription; waits up to `waitMs` for the first. They come again unless they are acknowledged. */
  async receive(topic: string, name: string, options: ReceiveOptions = {}): Promise<Entry[]> {
    const { max = 20, waitMs = 20_000, consumer, signal } = options;
    const params = { path: { ...topicPath(topic), name } };
    const answer = await this.#once(
      this.api.POST("/v1/topics/{tenant}/{namespace}/{topic}/subscriptions/{name}/receive", {
        params,
        body: { max, wait_ms: waitMs, ...defined({ consumer }) },
        signal: signal ?? null,
      }),
    );
    return answer.messages.map(withBytes);
  }

  /** Be done with entries. */
  async ack(topic: string, name: string, entryIds: readonly number[], consumer?: string): Promise<void> {
    const params = { path: { ...topicPath(topic), name } };
    const path = "/v1/topics/{tenant}/{namespace}/{topic}/subscriptions/{name}/ack";
    await this.#repeat(() => this.api.POST(path, { params, body: { entry_ids: [...entryIds], ...defined({ consumer }) } }));
  }

  /** Give entries back: they come again. */
  async nack(topic: string, name: string, entryIds: readonly number[], consumer?: string): Promise<void> {
    const params = { path: { ...topicPath(topic), name } };
    const path = "/v1/topics/{tenant}/{namespace}/{topic}/subscriptions/{name}/nack";
    await this.#once(this.api.POST(path, { params, body: { entry_ids: [...entryIds], ...defined({ consumer }) } }));
  }

  /**
   * Handle entries one after the other until `signal` aborts. An entry is acknowledged when its handler has
   * finished; if the handler throws, the entry is given back and the error passed on.
   */
  async consume(
    topic: string,
    name: string,
    handler: (entry: Entry) => unknown,
    options: ReceiveOptions = {},
  ): Promise<void> {
    const consumer = options.consumer ?? `client-${crypto.randomUUID()}`;
    while (!options.signal?.aborted) {
      let entries: Entry[];
      try {
        entries = await this.receive(topic, name, { ...options, consumer });
      } catch (error) {
        if (options.signal?.aborted) return;
        throw error;
      }
      await this.#handle(topic, name, entries, handler, { ...options, consumer });
    }
  }

  async #handle(
    topic: string,
    name: string,
    entries: readonly Entry[],
    handler: (entry: Entry) => unknown,
    { consumer, signal }: ReceiveOptions,
  ): Promise<void> {
    let done = 0;
    try {
      for (const entry of entries) {
        if (signal?.aborted) break;
        await handler(entry);
        await this.ack(topic, name, [entry.entry_id], consumer);
        done += 1;
      }
    } finally {
      const left = entries.slice(done).map((entry) => entry.entry_id);
      if (left.length > 0) await this.nack(topic, name, left, consumer).catch(() => undefined);
    }
  }

  async #command(which: Which, command: Command, body?: ReturnType<typeof timeFields>): Promise<Message> {
    const given = body === undefined ? {} : { body };
    const call =
      typeof which === "string"
        ? this.api.POST(`/v1/messages/{id}/${command}`, { params: { path: { id: which } }, ...given })
        : this.api.POST(`/v1/names/{tenant}/{namespace}/{message}/${command}`, { params: { path: namePath(which) }, ...given });
    return withBytes(await this.#once<Schemas["MessageAnswer"]>(call));
  }

  /** Make a call that may be repeated, again if the connection breaks. */
  async #repeat<T>(call: () => Promise<Answered<T>>): Promise<T> {
    let spent = 0;
    for (let wait = FIRST_WAIT_MS; ; wait = Math.min(wait * 2, LONGEST_WAIT_MS)) {
      try {
        return await this.#once(call());
      } catch (error) {
        spent += wait;
        if (!(error instanceof Unreachable) || spent > this.#retryForMs) throw error;
        await new Promise((resolve) => setTimeout(resolve, wait));
      }
    }
  }

  async #once<T>(call: Promise<Answered<T>>): Promise<T> {
    let answered: Answered<T>;
    try {
      answered = await call;
    } catch (cause) {
      if (cause instanceof Error && cause.name === "AbortError") throw cause;
      throw new Unreachable(`no answer from the server: ${String(cause)}`, { cause });
    }
    if (!answered.response.ok) throw new TarryError(answered.response.status, problemOf(answered));
    return answered.data as T;
  }
}

/** What the server said of a refusal; something between it and us may have answered in its place. */
function problemOf({ error, response }: Answered<unknown>): Problem {
  if (typeof error === "object" && error !== null && "code" in error) return error as Problem;
  const title = response.statusText || `HTTP ${response.status}`;
  return { type: "about:blank", title, status: response.status, code: "unknown", detail: title };
}

type Shown = { readonly payload?: string; readonly payload_base64?: string };

function withBytes<T extends Shown>(shown: T): T & { readonly bytes: Uint8Array } {
  return { ...shown, bytes: bytesOf(shown) };
}

type Defined<T> = { [K in keyof T]?: Exclude<T[K], undefined> };

function defined<T extends object>(fields: T): Defined<T> {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined)) as Defined<T>;
}
