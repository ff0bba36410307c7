/** Names of topics and of messages. */

export interface TopicPath {
  readonly tenant: string;
  readonly namespace: string;
  readonly topic: string;
}

/** The parts of a topic's name: `orders`, `tenant/namespace/orders`, or the same with `persistent://` before it. */
export function topicPath(name: string): TopicPath {
  const short = name.replace(/^persistent:\/\//, "");
  const parts = short.split("/");
  if (parts.length === 1) return { tenant: "public", namespace: "default", topic: short };
  const [tenant, namespace, topic] = parts;
  if (parts.length !== 3 || !tenant || !namespace || !topic) {
    throw new TypeError(`a topic is called "name" or "tenant/namespace/name", and not "${name}"`);
  }
  return { tenant, namespace, topic };
}

/** A message: by its id, or by the name that it was given in its namespace (`public/default`). */
export type Which = string | { readonly name: string; readonly namespace?: string };

export interface NamePath {
  readonly tenant: string;
  readonly namespace: string;
  readonly message: string;
}

/** The parts of a message's name. */
export function namePath({ name, namespace = "public/default" }: Exclude<Which, string>): NamePath {
  const [tenant, within, more] = namespace.split("/");
  if (!tenant || !within || more !== undefined) throw new TypeError(`a namespace is called "tenant/namespace", and not "${namespace}"`);
  return { tenant, namespace: within, message: name };
}
