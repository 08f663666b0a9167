// The verdicts, undo and next, as buttons that show their keys.
import { html } from "./html.js";
import { TASKS } from "./tasks.js";

export function Actions({ task, canJudge, canUndo, isBusy, onAction }) {
  const { verdicts } = TASKS[task];
  // Buttons that can't be pressed now keep the focus that a disabled one would lose.
  const button = (name, key, label, meaning, isPossible) => html`<button
    class=${name}
    title=${meaning}
    aria-disabled=${isPossible && !isBusy ? undefined : "true"}
    aria-keyshortcuts=${key}
    onClick=${() => onAction(name)}
  >
    <kbd aria-hidden="true">${key}</kbd> ${label}
  </button>`;
  return html`<div class="actions" role="group" aria-label="Verdict">
    ${verdicts.map(({ key, name, label, meaning }) => button(name, key, label, meaning, canJudge))}
    ${button("undo", "U", "Undo", "withdraw your last verdict", canUndo)}
    ${button("next", "Space", "Next", "leave this pair for later", canJudge)}
  </div>
  <p class="hint meanings">${verdicts.map(({ label, meaning }) => `${label}: ${meaning}.`).join(" ")}</p>`;
}
