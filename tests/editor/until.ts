// Waiting for a state, with a sentence that says which one did not come.

const EVERY_MS = 100;

/** Asks `state` until it is truthy and returns that. Rejects with `what` after `limit` milliseconds. */
export async function until<T>(what: string, limit: number, state: () => T | Promise<T>): Promise<NonNullable<T>> {
  const end = Date.now() + limit;
  for (;;) {
    const value = await state();
    if (value) return value;
    if (Date.now() > end) throw new Error(`waited ${limit / 1000} s: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, EVERY_MS));
  }
}
