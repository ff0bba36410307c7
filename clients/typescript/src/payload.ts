/** Payloads and times as programs have them, and as requests carry them. */

/** Bytes, text, or anything else that JSON can say. */
export type Payload = Uint8Array | string | number | boolean | null | readonly unknown[] | { readonly [key: string]: unknown };

/** When a message is due: one of these, or none for at once. */
export interface When {
  /** A wait: milliseconds, or text such as `1h30m` or `PT90M`. */
  readonly delay?: number | string;
  /** An instant: a `Date`, milliseconds since 1970, or RFC 3339 text. */
  readonly dueAt?: Date | number | string;
}

interface PayloadFields {
  payload?: string;
  payload_base64?: string;
  payload_json?: unknown;
}

interface TimeFields {
  delay?: string;
  delay_ms?: number;
  due_at?: string;
  due_at_ms?: number;
}

export function payloadFields(payload: Payload): PayloadFields {
  if (typeof payload === "string") return { payload };
  if (payload instanceof Uint8Array) return { payload_base64: toBase64(payload) };
  return { payload_json: payload };
}

export function timeFields({ delay, dueAt }: When): TimeFields {
  const fields: TimeFields = {};
  if (typeof delay === "number") fields.delay_ms = delay;
  else if (delay !== undefined) fields.delay = delay;
  if (dueAt instanceof Date) fields.due_at_ms = dueAt.getTime();
  else if (typeof dueAt === "number") fields.due_at_ms = dueAt;
  else if (dueAt !== undefined) fields.due_at = dueAt;
  return fields;
}

/** The bytes of an answer's payload: text stands in it as it is, anything else as base64. */
export function bytesOf(shown: { readonly payload?: string; readonly payload_base64?: string }): Uint8Array {
  if (shown.payload_base64 !== undefined) return fromBase64(shown.payload_base64);
  return new TextEncoder().encode(shown.payload ?? "");
}

function toBase64(bytes: Uint8Array): string {
  const pieces: string[] = [];
  // Arguments of a call are limited: a large payload goes in pieces.
  for (let at = 0; at < bytes.length; at += 8192) pieces.push(String.fromCharCode(...bytes.subarray(at, at + 8192)));
  return btoa(pieces.join(""));
}

function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}
