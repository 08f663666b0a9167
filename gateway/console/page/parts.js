// Small parts that several views show.
import { loadModels, models } from "./api.js";
import { asCurl, asPython } from "./code.js";
import { useUntil } from "./task.js";
import { html, useRef, useState } from "./vendor/preact.mjs";

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

// A table's columns: texts, then numbers.
export const heads = (texts, numbers) => html`<thead><tr>
  ${[...texts, ...numbers].map((name, i) => html`<th scope="col" class=${i < texts.length ? "" : "number"}>${name}</th>`)}
</tr></thead>`;

// Always in the page, so that screen readers notice when it fills.
export const Problem = ({ text, kind = "" }) => html`<p class=${`problem ${kind}`} role="alert">${text}</p>`;

// The button starts, and while something runs it stops; both have the same width, so that nothing moves.
export function Run({ task, label, onRun, isPossible = true, children }) {
  const isBusy = task.busy.value !== "";
  return html`<button
      type="button"
      class="primary run"
      aria-disabled=${!isPossible && !isBusy}
      onClick=${() => (isBusy ? task.stop() : isPossible && onRun())}
    >${isBusy ? "Stop" : label}</button>
    ${children}
    <span class="busy" role="status">${task.busy.value}</span>`;
}

export function Bar({ share, kind = "" }) {
  const width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return html`<span class=${`bar ${kind}`} aria-hidden="true"><span style=${{ width }}></span></span>`;
}

export function Copy({ calls }) {
  const [copied, setCopied] = useState("");
  const dialog = useRef(null);
  const [text, setText] = useState("");
  const copy = async (name, written) => {
    try {
      await navigator.clipboard.writeText(written);
      setCopied(`Copied as ${name}.`);
    } catch {
      // Browsers allow it only on https and on this machine.
      setText(written);
      dialog.current.showModal();
    }
  };
  const isEmpty = calls.length === 0;
  const button = (name, write) => html`<button
    class="plain" aria-disabled=${isEmpty}
    onClick=${() => !isEmpty && copy(name, write(calls))}
  >Copy as ${name}</button>`;
  return html`<div class="copy">
    ${button("curl", asCurl)} ${button("Python", asPython)} <span role="status">${copied}</span>
    <dialog ref=${dialog} aria-label="What was asked">
      <textarea readonly rows="12" aria-label="Command" value=${text} onFocus=${(event) => event.target.select()}></textarea>
      <form method="dialog"><button>Close</button></form>
    </dialog>
  </div>`;
}

// A frame's properties: `take` gets what is dropped on it, and meanwhile it shows that it would.
export function useDrop(name, take) {
  const [isOver, setOver] = useState(false);
  const at = (isNow, then) => (event) => {
    event.preventDefault();
    setOver(isNow);
    then?.(event.dataTransfer);
  };
  return { class: isOver ? `${name} over` : name, onDrop: at(false, take), onDragOver: at(true), onDragLeave: at(false) };
}

// A field's properties: what is typed goes into a signal, and Enter starts what it is for.
export const typed = (into, onEnter) => ({
  value: into.value,
  onInput: (event) => (into.value = event.target.value),
  onKeyDown: (event) => event.key === "Enter" && onEnter?.(),
});

export const chosen = (into) => ({ value: into.value, onChange: (event) => (into.value = event.target.value) });

// Shown only where there is a choice.
export function ModelChoice({ isOne, into }) {
  const names = models.value.filter(isOne).map((model) => model.id);
  if (names.length < 2) return null;
  return html`<label class="field">Model
    <select ...${chosen(into)}>
      <option value="">${names[0]} (first)</option>
      ${names.map((name) => html`<option value=${name}>${name}</option>`)}
    </select>
  </label>`;
}

// What `Head` says of the model that answers.
export function served(isOne, chosen) {
  const found = models.value.filter(isOne);
  const model = found.find(({ id }) => id === chosen) ?? found[0];
  return { isThere: found.length > 0, statement: model?.statement, mode: model?.resize_mode };
}

export const isScoring = (model) => "local_weight" in model;
export const isEmbedding = (model) => "dimensions" in model;
export const isGenerating = (model) => "calibration" in model;

export function Head({ title, about, statement, isThere = true, load = loadModels }) {
  const isLate = useUntil(isThere, load);
  return html`<header class="head">
    <h1 tabindex="-1">${title}</h1>
    <p>${about}</p>
    ${statement && html`<p class="hint">The model that answers: ${statement}</p>`}
    ${isLate && html`<p class="hint" role="status">The service that answers here is still starting, or does not run. This page looks again by itself.</p>`}
  </header>`;
}
