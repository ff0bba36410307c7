/** The refusals of the server, and what happens when it cannot be reached. */

import type { components } from "./schema.js";

export type Problem = components["schemas"]["Problem"];

/** A refusal by the server: which rule was broken, and what would work. `code` is stable. */
export class TarryError extends Error {
  override readonly name: string = "TarryError";

  constructor(
    readonly status: number,
    readonly problem: Problem,
  ) {
    super(problem.detail);
  }

  /** The kind of refusal, for programs: `invalid`, `not-found`, `conflict`, `rate-limited` … */
  get code(): string {
    return this.problem.code;
  }

  /** The field that is wrong, where it is one. */
  get field(): string | undefined {
    return this.problem.field ?? undefined;
  }

  /** When to try again, where the server says. */
  get retryAfterMs(): number | undefined {
    return this.problem.retry_after_ms ?? undefined;
  }
}

/** No answer came. A call that changes something may have been carried out. */
export class Unreachable extends Error {
  override readonly name: string = "Unreachable";
}
