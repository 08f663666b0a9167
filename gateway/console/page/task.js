// What a view does now: one thing at a time, which can be stopped; why the last one failed; and what it asked.
import { Refused } from "./api.js";
import { batch, signal } from "./vendor/preact.mjs";

export function createTask() {
  const busy = signal("");
  const problem = signal("");
  const calls = signal([]);
  let current = null;

  // At once: what was stopped may take a while to end, and something else may begin meanwhile.
  function stop() {
    current?.abort();
    current = null;
    busy.value = "";
  }

  async function run(what, work) {
    stop();
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
  return { busy, problem, calls, run, stop };
}
