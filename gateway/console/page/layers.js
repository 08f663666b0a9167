// By layer: what each document gets of a layer's attention, what its place gets whatever stands there, and what it got then.
import { sharesOf } from "./attention.js";
import { html } from "./vendor/preact.mjs";

function Heat({ title, about, rows, gold, nameOf }) {
  const count = Math.max(...rows.map((row) => row?.length ?? 0));
  const cell = (share, i) => html`<td class=${i === gold ? "gold" : ""} style=${{ "--share": `${Math.round(60 * share)}%` }}>${Math.round(100 * share)}</td>`;
  return html`<div class="heat scroll" tabindex="0" role="region" aria-label=${title}><table>
    <caption>${title} <span class="hint">${about}</span></caption>
    <thead><tr><th scope="col">Layer</th>${Array.from({ length: count }, (_, i) => html`<th scope="col" class=${i === gold ? "gold" : ""}>${i + 1}</th>`)}</tr></thead>
    <tbody>${rows.map((row, layer) => row && html`<tr><th scope="row">${nameOf(layer)}</th>${row.map(cell)}</tr>`)}</tbody>
  </table></div>`;
}

// Attention before, and what a dummy in the place of each document got, both as shares of the layer's attention to all.
function measured(reports) {
  const layers = reports.map((one) => one.by_layer);
  const before = layers[0].attention.map((_, l) => sharesOf(layers.map((one) => one.attention[l])));
  const isBiasKnown = layers.every((one) => one.relevance);
  const ofDummies = isBiasKnown ? layers[0].relevance.map((_, l) => sharesOf(layers.map((one) => one.attention[l] - one.relevance[l]))) : [];
  return { before, ofDummies };
}

export function Layers({ reports, after, profile, gold, isOpen, onToggle }) {
  const isThere = reports?.length > 0 && reports.every((one) => one.by_layer);
  const { before, ofDummies } = isThere ? measured(reports) : {};
  const deciding = profile?.rel_layers ?? [];
  const nameOf = (layer) => html`${layer}${deciding.includes(layer) && html` <abbr title="decides">★</abbr>`}`;
  const calibrated = before?.map((_, layer) => (after && profile?.layers.includes(layer) ? after : null));
  return html`<details class="more" open=${isOpen} onToggle=${(event) => onToggle(event.target.open)}><summary>Attention by layer</summary>
    ${!isThere && html`<p class="hint">Ask to see it.</p>`}
    ${isThere && isOpen && html`<p class="hint">Percent of a layer's attention to all documents: a row for each layer, counted from 0, a column for each document.
        The framed one answers. ${deciding.length > 0 && "★ marks the layers whose attention decides what is relevant, those of the bars above."}</p>
      <div class="heats">
        <${Heat} title="Before" about="as the model attends" rows=${before} gold=${gold} nameOf=${nameOf} />
        ${ofDummies.length > 0 && html`<${Heat} title="Bias of the place" about="filler in place of each document" rows=${ofDummies} gold=${gold} nameOf=${nameOf} />`}
        ${after && html`<${Heat} title="After" about="calibrated layers alone" rows=${calibrated} gold=${gold} nameOf=${nameOf} />`}
      </div>`}
  </details>`;
}
