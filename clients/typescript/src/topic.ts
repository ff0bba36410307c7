/** Names of topics. */

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
