// Makes and fills collections: the examples at one click, files and folders by choosing or dropping them.
import { ask } from "./api.js";
import { EXAMPLES, addCall, addFiles, added, chosenFiles, collections, droppedFiles, exampleFiles, isImage, loadCollections, makeCall, pathOf, progress } from "./collections.js";
import { ModelChoice, Problem, isEmbedding, typed, useDrop } from "./parts.js";
import { createTask } from "./task.js";
import { html, signal, useRef } from "./vendor/preact.mjs";

export const task = createTask();
const newName = signal("");
const model = signal("");
const isNameWanted = signal(false);
const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;

function fill(name, conditions, read, onFilled) {
  return task.run("Adding images …", async (stop) => {
    const { files: given, metadata } = await read();
    const files = given.filter(isImage);
    added.value = { name, ids: [], refused: given.filter((file) => !isImage(file)).map((file) => ({ name: file.name, message: "It is no image." })) };
    if (files.length === 0) return;
    const call = makeCall(name, conditions, model.value);
    await ask(call, stop);
    task.calls.value = [call, addCall(name, files.slice(0, 3), metadata)];
    try {
      await addFiles(name, files, metadata, stop);
    } finally {
      progress.value = null;
      await loadCollections();
    }
    newName.value = "";
    isNameWanted.value = false;
    onFilled(name, added.value.ids[0] ?? "");
  });
}

export function Gather({ name, conditions, onFilled }) {
  const field = useRef(null);
  const target = newName.value.trim();
  const isNamed = NAME.test(target);
  const askName = (event) => {
    if (isNamed) return;
    event?.preventDefault();
    isNameWanted.value = true;
    field.current.focus();
  };
  const add = (read) => !isNamed ? askName() : fill(target, conditions, async () => ({ files: await read, metadata: {} }), onFilled);
  const remove = () => window.confirm(`Delete the collection ${name} with all its images?`) &&
    task.run("Deleting …", async (stop) => {
      await ask({ method: "DELETE", path: pathOf(name) }, stop);
      await loadCollections(stop);
    });
  const drop = useDrop("gather", (dropped) => add(droppedFiles(dropped)));
  const input = (label, props) => html`<label class="button" onClick=${askName}>${label}<input
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
      ${!hasExamples && html`<button class="primary" onClick=${() => fill(EXAMPLES, conditions, exampleFiles, onFilled)}>Make the example collection</button>`}
      <label class="field inline">Name of the collection <input ref=${field} list="names" placeholder="a new one, or one to fill" spellcheck=${false} ...${typed(newName)} /></label>
      <datalist id="names">${collections.value?.map((one) => html`<option value=${one.name}></option>`)}</datalist>
      <${ModelChoice} isOne=${isEmbedding} into=${model} />
      ${input("Add images …", { accept: "image/*" })}
      ${input("Add a folder …", { webkitdirectory: true })}
      ${task.busy.value && html`<button onClick=${task.stop}>Stop</button>`}
      ${collections.value?.some((one) => one.name === name) && html`<button class="plain" onClick=${remove}>Delete ${name}</button>`}
    </div>
    <p class="hint">Or drop images or a folder here. ${(newName.value || isNameWanted.value) && !isNamed && html`<span class="wrong" role="alert">${newName.value ? "" : "Type a name for the collection first. "}A name has letters, digits, ., _ and -, and begins with a letter or a digit.</span>`}</p>
    <p role="status" class="hint filling">${progress.value ? html`<progress max=${Math.max(1, total)} value=${done} aria-label=${what}></progress> ${what} ${done} of ${total}` : task.busy.value}</p>
    <${Problem} text=${task.problem.value} />
  </div>`;
}

// Beside the panel, which folds once its collection is there.
export function Added() {
  if (!added.value || progress.value) return null;
  const { name, ids, refused } = added.value;
  return html`<div class="added" role="status">
    <p class="hint">${ids.length} ${ids.length === 1 ? "image" : "images"} stored in ${name}.</p>
    ${refused.length > 0 && html`<details open><summary>${refused.length} not added</summary>
      <ul>${refused.map((one) => html`<li>${one.name}: ${one.message}</li>`)}</ul>
    </details>`}
  </div>`;
}
