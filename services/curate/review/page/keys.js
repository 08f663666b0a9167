// Keys of the page: one for each action.
import { TASKS } from "./tasks.js";

const ACTIONS = { u: "undo", " ": "next", n: "note" };

// The action that a key press asks for in a task, or null. A key that is held down counts once, or it would judge many pairs.
export function actionOf(event, task) {
  if (event.repeat || event.ctrlKey || event.altKey || event.metaKey) return null;
  // The element itself, also where the review has a shadow root of its own.
  const [element] = event.composedPath();
  if (element.matches?.("input, select, textarea, dialog, dialog *")) return null;
  // There the space bar already presses what has the focus.
  if (event.key === " " && element.matches?.("button, a, summary")) return null;
  const verdict = TASKS[task].verdicts.find(({ key }) => key === event.key);
  return verdict?.name ?? ACTIONS[event.key.toLowerCase()] ?? null;
}
