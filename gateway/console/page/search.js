// Search: the images nearest to a picture or a text, under one condition a column.
import { ask, each } from "./api.js";
import { EXAMPLES, collections, filterOf, loadCollections, pathOf } from "./collections.js";
import { Added, Gather } from "./gather.js";
import { Copy, Head, Problem, Run, isEmbedding, served, typed } from "./parts.js";
import { PictureInput, noPicture, ownPicture } from "./picture.js";
import { Columns, ImagePanel, StoredImage } from "./results.js";
import { remembered } from "./state.js";
import { createTask, useFirstRun } from "./task.js";
import { Vectors } from "./vectors.js";
import { batch, html, signal } from "./vendor/preact.mjs";

const SUGGESTED = [
  "", "What is the color of the object?", "What is the shape of the object?", "What is the color of the background?",
  "What is the texture of the background?", "What is the size of the object?", "Where is the object?",
];
const EXAMPLE = "purple-heart.jpg";
const OFFERED = 12;
const fields = remembered("search", {
  collection: EXAMPLES, by: "id", id: EXAMPLE, text: "a red star", filter: "", k: 6, conditions: SUGGESTED.slice(0, 4),
});
const task = createTask();
const picture = signal(noPicture);
const columns = signal([]);
const opened = signal(null);
const newCondition = signal("");
// The first images of a collection, to search with.
const first = signal({ of: "", ids: [] });

// Of the ways to search; a link may hold anything.
const way = () => (["picture", "text"].includes(fields.by.value) ? fields.by.value : "id");

// What the query's vectors are of, as `Vectors` has it; null where there is no query yet.
function queryInput() {
  if (way() === "text") return { of: fields.text.value, input: { texts: [fields.text.value] } };
  const id = `${fields.collection.value}/${fields.id.value}`;
  if (way() === "id") return fields.id.value && { of: id, input: { images: [{ id }] } };
  const { blob, name, source } = picture.value;
  return blob && { of: blob, input: { form: [["file", { blob, name, source }]] } };
}

function searchCall(condition) {
  const path = `${pathOf(fields.collection.value)}/search`;
  const filter = filterOf(fields.filter.value);
  const isFiltered = Object.keys(filter).length > 0;
  const { name, blob } = picture.value;
  if (way() === "picture") {
    const form = [["file", { blob, name, source: picture.value.source }], ["k", String(fields.k.value)]];
    if (condition) form.push(["condition", condition]);
    if (isFiltered) form.push(["filter", JSON.stringify(filter)]);
    return { method: "POST", path, form };
  }
  const json = { [way()]: fields[way()].value, k: fields.k.value };
  if (condition) json.condition = condition;
  if (isFiltered) json.filter = filter;
  return { method: "POST", path, json };
}

const isPossible = () => (way() === "picture" ? picture.value.blob !== null : fields[way()].value !== "");

async function loadFirst(stop) {
  const of = fields.collection.value;
  if (first.value.of === of) return;
  const { data } = await ask({ path: `${pathOf(of)}/images`, query: [["limit", OFFERED]] }, stop);
  first.value = { of, ids: data.map(({ id }) => id) };
}

function run() {
  return task.run("Searching …", async (stop) => {
    if (collections.value === null) await loadCollections(stop);
    if (way() === "picture" && !picture.value.blob) picture.value = await ownPicture("search");
    const isThere = collections.value.some((one) => one.name === fields.collection.value);
    if (!isThere) return;
    await loadFirst(stop);
    const [next = ""] = first.value.ids;
    fields.id.value ||= next;
    if (!isPossible()) return;
    const conditions = [...new Set(fields.conditions.value)];
    const calls = conditions.map(searchCall);
    task.calls.value = calls;
    const found = await each(calls.map((call) => ask(call, stop)));
    stop.throwIfAborted();
    // An image of a draft or link that the collection lacks.
    if (way() === "id" && fields.id.value !== next && found.some((one) => one.code === "image_not_found")) return set({ id: next });
    columns.value = conditions.map((condition, i) => ({
      condition, collection: fields.collection.value, found: found[i].value, problem: found[i].problem,
    }));
  });
}

function set(changes) {
  batch(() => {
    for (const [name, value] of Object.entries(changes)) fields[name].value = value;
  });
  return run();
}

function enter(collection, id = collection === EXAMPLES ? EXAMPLE : "") {
  columns.value = [];
  first.value = { of: "", ids: [] };
  return set({ collection, id });
}

function addCondition(condition) {
  newCondition.value = "";
  if (!fields.conditions.value.includes(condition)) set({ conditions: [...fields.conditions.value, condition] });
}

function removeCondition(condition) {
  fields.conditions.value = fields.conditions.value.filter((one) => one !== condition);
  columns.value = columns.value.filter((one) => one.condition !== condition);
}

function Query({ model }) {
  const by = way();
  const input = queryInput();
  const choice = (value, label) => html`<label class="choice"><input
    type="radio" name="by" checked=${by === value} onChange=${() => set({ by: value })}
  />${label}</label>`;
  return html`<div>
    <fieldset><legend>Search with</legend>
      ${choice("id", "an image of the collection")} ${choice("picture", "a picture")} ${choice("text", "a text")}
    </fieldset>
    ${by === "id" && html`<div class="picture">${fields.id.value && html`<${StoredImage} collection=${fields.collection.value} id=${fields.id.value} alt=${fields.id.value} />`}</div>
      <p class="hint">${fields.id.value ? `${fields.id.value} · choose one below, or open a result to search with it` : "No picture to search with: add some to this collection."}</p>
      <div class="choices" role="group" aria-label="Images of the collection">
        ${first.value.ids.map((id) => html`<button class="thumb" key=${id} aria-label=${`Search with ${id}`} aria-pressed=${id === fields.id.value} onClick=${() => set({ id })}>
          <${StoredImage} collection=${first.value.of} id=${id} alt="" />
        </button>`)}
      </div>`}
    ${by === "picture" && html`<${PictureInput}
      view="search" picture=${picture.value} examples=${["two-shapes.jpg", "pair-1.jpg"]} label="Choose a picture …"
      onPicture=${(next) => { picture.value = next; run(); }}
    />`}
    ${by === "text" && html`<label class="field">Text
      <input ...${typed(fields.text, run)} />
    </label><p class="hint">A condition applies to the images; the text has one embedding.</p>`}
    <label class="field spaced">Filter on metadata
      <input placeholder='color=red or {"seen": {"$gte": 3}}' spellcheck=${false} ...${typed(fields.filter, run)} />
    </label>
    <label class="field">Results a column
      <select value=${fields.k.value} onChange=${(event) => set({ k: Number(event.target.value) })}>
        ${[6, 12, 24].map((k) => html`<option value=${k}>${k}</option>`)}
      </select>
    </label>
    <div class="actions"><${Run} task=${task} label="Search" onRun=${run} isPossible=${isPossible()} /></div>
    <${Problem} text=${task.problem.value} />
    ${input && html`<${Vectors} ...${input} conditions=${by === "text" ? [""] : fields.conditions.value} model=${model} />`}
  </div>`;
}

function Conditions() {
  const offered = SUGGESTED.filter((one) => !fields.conditions.value.includes(one));
  return html`<div class="conditions">
    <div class="actions">
      <label class="field inline">Another condition
        <input placeholder="any question about the picture" ...${typed(newCondition, () => newCondition.value.trim() && addCondition(newCondition.value.trim()))} />
      </label>
      ${offered.map((one) => html`<button class="small" onClick=${() => addCondition(one)}>+ ${one || "no condition"}</button>`)}
    </div>
  </div>`;
}

export function Search() {
  useFirstRun(run, () => columns.value.some((one) => one.found));
  const names = (collections.value ?? []).map((one) => one.name);
  const isThere = names.includes(fields.collection.value);
  const now = collections.value?.find((one) => one.name === fields.collection.value);
  const model = now?.model.split("@")[0] ?? "";
  return html`<${Head}
      title="Search" ...${served(isEmbedding, model)}
      about="The same query under several conditions: each column asks another question of the same pictures."
    />
    ${names.length > 0 && html`<label class="field collection">Collection
      <select value=${fields.collection.value} onChange=${(event) => enter(event.target.value)}>
        ${!isThere && html`<option value=${fields.collection.value}>choose one</option>`}
        ${collections.value.map((one) => html`<option value=${one.name}>${one.name} (${one.size} images)</option>`)}
      </select>
    </label>`}
    <details class="more" open=${!isThere && collections.value !== null}><summary>Make or fill a collection</summary>
      <${Gather} name=${fields.collection.value} conditions=${fields.conditions.value} onFilled=${(name, id) => { fields.by.value = "id"; enter(name, name === EXAMPLES ? EXAMPLE : id); }} />
    </details>
    <${Added} />
    ${collections.value === null && html`<${Problem} text=${task.problem.value} />`}
    ${isThere && html`<div class="search">
      <${Query} model=${model} />
      <div>
        <${Conditions} />
        <${Columns} columns=${columns.value} onOpen=${(one) => (opened.value = one)} onRemove=${removeCondition} />
        ${now?.size === 0 && html`<p class="hint">This collection is empty.</p>`}
        <${Copy} calls=${task.calls.value} />
      </div>
    </div>`}
    ${opened.value && html`<${ImagePanel}
      collection=${fields.collection.value} image=${opened.value} columns=${columns.value}
      model=${model} onOpen=${(one) => (opened.value = one)} onClose=${() => (opened.value = null)}
      onSearch=${(id) => set({ by: "id", id })} onFilter=${(name, value) => set({ filter: `${name}=${value}` })}
    />`}`;
}
