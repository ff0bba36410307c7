// Reads entries of a topic by a subscription of its own, which lives in memory and takes nothing away from any other.

import { api } from "./api.js";

const WINDOW = 100;

export class Reader {
  constructor(topic) {
    this.name = `dashboard-${crypto.randomUUID()}`;
    this.path = `/v1/topics/${topic.replace("persistent://", "").split("/").map(encodeURIComponent).join("/")}/subscriptions/${this.name}`;
    this.stopped = new AbortController();
    this.open = false;
  }

  /** Up to so many entries from one on, in publish order, those that still wait included. */
  async read(from, most) {
    try {
      await this.begin(from);
      return (await api.call("POST", `${this.path}/receive`, { consumer: this.name, max: most, wait_ms: 200 })).messages;
    } finally {
      this.close();
    }
  }

  /** Give each entry that is published from now on, until it is closed. */
  async follow(give) {
    await this.begin("latest");
    const answer = await api.stream(`${this.path}/events?consumer=${this.name}&window=${WINDOW}`, this.stopped.signal);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "", last = null;
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the stream has ended");
      const events = (text + value).split("\n\n");
      text = events.pop();
      for (const event of events) {
        const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
        if (!data) continue;
        const entry = JSON.parse(data);
        last = entry.entry_id;
        give(entry);
      }
      if (last !== null) await api.call("POST", `${this.path}/ack`, { consumer: this.name, up_to: last });
    }
  }

  async begin(start) {
    await api.call("PUT", this.path, { type: "exclusive", start, durable: false });
    this.open = true;
  }

  close() {
    this.stopped.abort();
    if (!this.open) return;
    this.open = false;
    api.call("DELETE", this.path).catch(() => { /* it lives in memory, and goes by itself when nobody reads it */ });
  }
}
