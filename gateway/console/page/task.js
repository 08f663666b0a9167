// What a view does now: one thing at a time, which can be stopped; why the last one failed; and what it asked.
import { Refused, each, isBarred } from "./api.js";
import { batch, signal, useEffect, useState } from "./vendor/preact.mjs";

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
      window.dispatchEvent(new Event("answered"));
    } catch (failure) {
      if (failure.name !== "AbortError" && !(failure instanceof Refused)) throw failure;
      if (mine === current && failure instanceof Refused) problem.value = failure.message;
    } finally {
      if (mine === current) busy.value = "";
    }
  }
  return { busy, problem, calls, run, stop };
}

// Runs on a view's first visit, and again once a key was given or a service is up that was missing.
export function useFirstRun(run, isShown) {
  useEffect(() => {
    const first = () => isShown() || run();
    first();
    window.addEventListener("key-changed", run);
    window.addEventListener("service-up", first);
    return () => {
      window.removeEventListener("key-changed", run);
      window.removeEventListener("service-up", first);
    };
  }, []);
}

const LONGEST_PAUSE_MS = 16_000;

// Loads until it is there, after ever longer pauses and whenever a request was answered. Tells whether that takes long.
export function useUntil(isThere, load) {
  const [tries, setTries] = useState(0);
  useEffect(() => {
    if (isThere) {
      if (tries) window.dispatchEvent(new Event("service-up"));
      return setTries(0);
    }
    const again = async () => {
      if (!document.hidden && !isBarred) await each([load()]);
      setTries((before) => before + 1);
    };
    const timer = setTimeout(again, Math.min(1000 * 2 ** tries, LONGEST_PAUSE_MS));
    window.addEventListener("answered", again);
    return () => {
      clearTimeout(timer);
      window.removeEventListener("answered", again);
    };
  }, [isThere, tries]);
  return tries > 0 && !isThere && !isBarred;
}
