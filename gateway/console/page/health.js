// What the gateway says of its services without a key: which are ready, and whether there is a review.
import { Refused, ask } from "./api.js";
import { signal } from "./vendor/preact.mjs";

export const health = signal(null);
export const healthProblem = signal("");

export const hasReview = () => Boolean(health.value?.checks.review?.ok);

export async function loadHealth() {
  try {
    health.value = await ask({ path: "readyz" });
    healthProblem.value = "";
  } catch (refused) {
    if (!(refused instanceof Refused)) throw refused;
    healthProblem.value = refused.message;
  }
}
