// What a view does now: one thing at a time, which can be stopped; why the last one failed; and what it asked.
import { Refused } from "./api.js";
import { batch, signal } from "./vendor/preact.mjs";

export function createTask() {
  const busy = signal("");
  const problem = signal("");
  const calls = signal([]);
  let current = null;

  async function run(what, work) {
    current?.abort();
    const mine = (current = new AbortController());
    batch(() => {
      busy.value = what;
      problem.value = "";
    });
    try {
      await work(mine.signal);
    } catch (failure) {
      if (failure.name !== "AbortError" && !(failure instanceof Refused)) throw failure;
      if (mine === current && failure instanceof Refused) problem.value = failure.message;
    } finally {
      if (mine === current) busy.value = "";
    }
  }
  return { busy, problem, calls, run, stop: () => current?.abort() };
}
