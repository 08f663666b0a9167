// Makes and fills collections: the examples at one click, files and folders by choosing or dropping them.
import { ask } from "./api.js";
import { EXAMPLES, addCall, addFiles, chosenFiles, collections, droppedFiles, exampleFiles, loadCollections, makeCall, pathOf, progress, refused } from "./collections.js";
import { ModelChoice, Problem, isEmbedding, typed, useDrop } from "./parts.js";
import { createTask } from "./task.js";
import { html, signal } from "./vendor/preact.mjs";

export const task = createTask();
const newName = signal("");
const model = signal("");
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

function fill(name, conditions, read, onFilled) {
  return task.run("Adding images …", async (stop) => {
    const { files, metadata } = await read();
    const call = makeCall(name, conditions, model.value);
    await ask(call, stop);
    task.calls.value = [call, addCall(name, files.slice(0, 3), metadata)];
    try {
      await addFiles(name, files, metadata, stop);
    } finally {
      progress.value = null;
      await loadCollections();
    }
    onFilled(name);
  });
}

export function Gather({ name, conditions, onFilled }) {
  const target = newName.value.trim() || name;
  const isNamed = NAME.test(target);
  const add = (read) => isNamed && fill(target, conditions, async () => ({ files: await read, metadata: {} }), onFilled);
  const remove = () => window.confirm(`Delete the collection ${name} with all its images?`) &&
    task.run("Deleting …", async (stop) => {
      await ask({ method: "DELETE", path: pathOf(name) }, stop);
      await loadCollections(stop);
    });
  const drop = useDrop("gather", (dropped) => add(droppedFiles(dropped)));
  const input = (label, props) => html`<label class="button">${label}<input
    type="file" class="unseen" multiple ...${props}
    onChange=${(event) => {
      add(Promise.resolve(chosenFiles(event.target.files)));
      event.target.value = "";
    }}
  /></label>`;
  const hasExamples = (collections.value ?? []).some((one) => one.name === EXAMPLES);
  const { what, done, total } = progress.value ?? {};
  return html`<div ...${drop}>
    <div class="actions">
      ${!hasExamples && html`<button type="button" class="primary" onClick=${() => fill(EXAMPLES, conditions, exampleFiles, onFilled)}>Make the example collection</button>`}
      <label class="field inline">Name of the collection <input placeholder=${name} spellcheck=${false} ...${typed(newName)} /></label>
      <${ModelChoice} isOne=${isEmbedding} into=${model} />
      ${isNamed && input("Add images …", { accept: "image/*" })}
      ${isNamed && input("Add a folder …", { webkitdirectory: true })}
      ${task.busy.value && html`<button type="button" onClick=${task.stop}>Stop</button>`}
      ${collections.value?.some((one) => one.name === name) && html`<button type="button" class="plain" onClick=${remove}>Delete ${name}</button>`}
    </div>
    <p class="hint">Or drop images or a folder here. ${newName.value && !isNamed && html`<span class="wrong">A name has letters, digits, ., _ and -, and begins with a letter or a digit.</span>`}</p>
    <p role="status" class="hint filling">${progress.value ? html`<progress max=${Math.max(1, total)} value=${done} aria-label=${what}></progress> ${what} ${done} of ${total}` : task.busy.value}</p>
    <${Problem} text=${task.problem.value} />
    ${refused.value.length > 0 && html`<details open><summary>${refused.value.length} not added</summary>
      <ul>${refused.value.map((one) => html`<li>${one.name}: ${one.message}</li>`)}</ul>
    </details>`}
  </div>`;
}
