// Attention by layer: what each document got, what filler in its place got, and what calibration made of it.
import { sharesOf } from "./attention.js";
import { html } from "./vendor/preact.mjs";

function Heat({ title, about, rows, gold, nameOf }) {
  const count = Math.max(...rows.map((row) => row?.length || 0));
  const cell = (share, i) => html`<td class=${i === gold ? "marked" : ""} style=${{ "--share": `${Math.round(50 * share)}%` }}>${Math.round(100 * share)}</td>`;
  return html`<div class="heat scroll" tabindex="0" role="region" aria-label=${title}><table>
    <caption>${title} <span class="hint">${about}</span></caption>
    <thead><tr><th scope="col">Layer</th>${Array.from({ length: count }, (_, i) => html`<th scope="col" class=${i === gold ? "marked" : ""}>${i + 1}</th>`)}</tr></thead>
    <tbody>${rows.map((row, layer) => row && html`<tr><th scope="row">${nameOf(layer)}</th>${row.map(cell)}</tr>`)}</tbody>
  </table></div>`;
}

export function Layers({ reports, after, profile, gold, isOpen, onToggle }) {
  const found = reports?.map((one) => one.by_layer) ?? [];
  const isThere = isOpen && found[0];
  const deciding = profile?.rel_layers ?? [];
  const nameOf = (layer) => html`${layer}${deciding.includes(layer) && html` <abbr title="decides">★</abbr>`}`;
  const heat = (title, about, rows) => html`<${Heat} title=${title} about=${about} rows=${rows} gold=${gold} nameOf=${nameOf} />`;
  const inEach = (layers, number) => layers.map((_, layer) => sharesOf(found.map((one) => number(one, layer))));
  return html`<details class="more" open=${isOpen} onToggle=${(event) => onToggle(event.target.open)}><summary>Attention by layer</summary>
    ${!isThere && html`<p class="hint">Ask to see it.</p>`}
    ${isThere && html`<p class="hint">Percent of a layer's attention to all documents: a row a layer, from 0, a column a document; the framed one answers.
        ${deciding.length > 0 && " ★ marks the layers that decide what is relevant, those of the bars above."}</p>
      <div class="heats">
        ${heat("Before", "as the model attends", inEach(found[0].attention, (one, layer) => one.attention[layer]))}
        ${found[0].relevance && heat("Bias of the place", "filler in its place", inEach(found[0].relevance, (one, layer) => one.attention[layer] - one.relevance[layer]))}
        ${after && heat("After", "layers that are calibrated", found[0].attention.map((_, layer) => profile?.layers.includes(layer) && after))}
      </div>`}
  </details>`;
}
