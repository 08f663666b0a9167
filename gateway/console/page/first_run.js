// Shows something on a view's first visit, and again once a key was given that was missing.
import { useEffect } from "./vendor/preact.mjs";

export function useFirstRun(run, isShown) {
  useEffect(() => {
    if (!isShown()) run();
    window.addEventListener("key-changed", run);
    return () => window.removeEventListener("key-changed", run);
  }, []);
}
