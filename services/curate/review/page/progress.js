// Progress of a review and agreement of its reviewers, fetched when somebody looks.
import { html } from "./html.js";
import { labelOf } from "./tasks.js";

const percent = (share) => `${(100 * share).toFixed(1)} %`;

function Agreement({ agreement }) {
  const { statistic, kappa, observed, num_pairs, reason } = agreement;
  const name = statistic ?? "Kappa";
  const over = statistic && `, over ${num_pairs} ${num_pairs === 1 ? "pair" : "pairs"}`;
  const value = kappa === null ? `undefined${over ?? ""}: ${reason}` : `${kappa.toFixed(3)}${over ?? ""}`;
  return html`<dt>${name}</dt>
    <dd>${value}</dd>
    ${observed !== null && html`<dt>Same verdict</dt><dd>${percent(observed)}, by chance or not</dd>`}`;
}

export function Progress({ task, summary, onToggle, onDownload }) {
  return html`<details class="progress" onToggle=${(event) => onToggle(event.target.open)}>
    <summary>Progress and agreement</summary>
    ${summary &&
    html`<dl>
        <dt>Pairs complete</dt>
        <dd>${summary.num_complete} of ${summary.num_pairs}, each judged by ${summary.reviewers_per_pair}</dd>
        ${summary.reviewers.map(({ name, num_judged }) => html`<dt>${name}</dt><dd>${num_judged} judged</dd>`)}
        <dt>Verdicts</dt>
        <dd>${Object.entries(summary.verdicts).map(([name, count]) => `${labelOf(task, name)} ${count}`).join(", ")}</dd>
        <${Agreement} agreement=${summary.agreement} />
        <dt>Disagreements</dt>
        <dd>${summary.num_disputed}</dd>
      </dl>
      <p><button class="plain" onClick=${onDownload}>Download all verdicts (JSON lines)</button></p>`}
  </details>`;
}
