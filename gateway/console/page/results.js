// Results: a column for each condition, and an image of them in full size.
import { askBlob, key } from "./api.js";
import { filterOf, imagePath } from "./collections.js";
import { heads } from "./parts.js";
import { Vectors } from "./vectors.js";
import { html, useEffect, useRef, useState } from "./vendor/preact.mjs";

// A browser sends no key for an image by itself, so where there is one the image is fetched.
export function StoredImage({ collection, id, alt }) {
  const path = imagePath(collection, id);
  const [url, setUrl] = useState("");
  useEffect(() => {
    if (!key.value) return undefined;
    const stopping = new AbortController();
    let made = "";
    askBlob({ path }, stopping.signal).then((blob) => setUrl((made = URL.createObjectURL(blob))), () => {});
    return () => {
      stopping.abort();
      URL.revokeObjectURL(made);
    };
  }, [path, key.value]);
  return html`<img src=${key.value ? url || undefined : path} alt=${alt} loading="lazy" />`;
}

const about = ({ size, exact, state }) => (state === "building"
  ? `${exact ? "all images" : "candidates"} compared; the index is being built`
  : `${size} images, ${exact ? "all" : "candidates"} compared`);

function Column({ column, onOpen, onRemove }) {
  const { condition, found, problem } = column;
  return html`<section class="column" aria-label=${condition || "no condition"}>
    <h2><span>${condition || html`<em>no condition</em>`}</span>
      <button class="plain" aria-label=${`Remove the column ${condition || "no condition"}`} onClick=${onRemove}>✕</button>
    </h2>
    <p class="hint">${problem ? html`<span class="wrong">${problem}</span>` : found ? about(found.index) : "…"}</p>
    <ol>
      ${found?.results.map((one) => html`<li><button class="hit" onClick=${() => onOpen({ ...one, condition })}>
        <${StoredImage} collection=${column.collection} id=${one.id} alt=${one.id} />
        <span class="number">${one.score.toFixed(3)}</span>
      </button></li>`)}
    </ol>
    ${found?.results.length === 0 && html`<p class="hint">Nothing matches.</p>`}
  </section>`;
}

export function Columns({ columns, onOpen, onRemove }) {
  return html`<div class="columns" tabindex="0" role="region" aria-label="Results by condition">
    ${columns.map((column) => html`<${Column} key=${column.condition} column=${column} onOpen=${onOpen} onRemove=${() => onRemove(column.condition)} />`)}
  </div>`;
}

// Whether it can be written as a filter.
const isFilter = (name, value) => JSON.stringify(filterOf(`${name}=${value}`)) === JSON.stringify({ [name]: value });

const LONG = 200;

// A text of any length: a long one is cut until it is opened.
const Cut = ({ text }) => text.length <= LONG ? text
  : html`<details class="cut"><summary>${text.slice(0, LONG)}…</summary>${text}</details>`;

// `image` is a result with the condition of its column; arrows go to the column's other results.
export function ImagePanel({ collection, image, columns, model, onOpen, onClose, onSearch, onFilter }) {
  const dialog = useRef(null);
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  const scores = columns.flatMap(({ condition, found }) =>
    (found?.results ?? []).map((one, place) => ({ ...one, place, condition })).filter(({ id }) => id === image.id),
  );
  const keys = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const beside = columns.find(({ condition }) => condition === image.condition)?.found?.results ?? [];
    const next = step && beside[beside.findIndex(({ id }) => id === image.id) + step];
    if (next) onOpen({ ...next, condition: image.condition });
  };
  const leave = (work, ...given) => {
    dialog.current.close();
    work(...given);
  };
  return html`<dialog ref=${dialog} class="panel" aria-label=${image.id} onClose=${onClose} onKeyDown=${keys}>
    <div class="panel-grid">
      <${StoredImage} collection=${collection} id=${image.id} alt=${image.id} />
      <div>
        <h2>${image.id}</h2>
        <table>${heads(["Condition"], ["Place", "Cosine"])}
          <tbody>${scores.map(({ condition, place, score }) => html`<tr>
            <td>${condition || "no condition"}</td><td class="number">${place + 1}</td><td class="number">${score.toFixed(3)}</td>
          </tr>`)}</tbody>
        </table>
        <dl>${Object.entries(image.metadata ?? {}).map(([name, value]) => html`<dt><${Cut} text=${name} /></dt><dd>${isFilter(name, value) && String(value).length <= LONG
          ? html`<button class="plain" title="Only images with this" onClick=${() => leave(onFilter, name, value)}>${String(value)}</button>`
          : html`<${Cut} text=${typeof value === "string" ? value : JSON.stringify(value)} />`}</dd>`)}</dl>
        <${Vectors}
          of=${image.id} conditions=${columns.map((one) => one.condition)} model=${model}
          input=${{ images: [{ id: `${collection}/${image.id}` }] }}
        />
        <div class="actions">
          <button class="primary" onClick=${() => leave(onSearch, image.id)}>Search with this</button>
          <button onClick=${() => dialog.current.close()}>Close</button>
        </div>
      </div>
    </div>
  </dialog>`;
}
