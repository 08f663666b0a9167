// Keys of the page: one for each action.

export const VERDICTS = [
  { key: "1", name: "valid", label: "Valid", meaning: "the negative caption is false of the image" },
  { key: "2", name: "false_negative", label: "False negative", meaning: "it is true of the image as well" },
  { key: "3", name: "unclear", label: "Unclear", meaning: "the image does not tell" },
];

export const LABELS = Object.fromEntries(VERDICTS.map(({ name, label }) => [name, label]));

const ACTIONS = {
  ...Object.fromEntries(VERDICTS.map(({ key, name }) => [key, name])),
  u: "undo",
  " ": "next",
  n: "note",
};

// The action that a key press asks for, or null. A key that is held down counts once, or it would judge many pairs.
export function actionOf(event) {
  if (event.repeat || event.ctrlKey || event.altKey || event.metaKey) return null;
  // The element itself, also where the review has a shadow root of its own.
  const [element] = event.composedPath();
  if (element.matches?.("input, select, textarea, dialog, dialog *")) return null;
  // There the space bar already presses what has the focus.
  if (event.key === " " && element.matches?.("button, a, summary")) return null;
  return ACTIONS[event.key.toLowerCase()] ?? null;
}
