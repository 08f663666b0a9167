// Rerank: the same documents, ranked by several methods side by side.
import { ask, each } from "./api.js";
import { Documents, isDocuments, textOf, titleOf } from "./documents.js";
import texts from "./examples/texts.js";
import { Bar, Copy, Head, ModelChoice, Problem, Run, isGenerating, served, typed } from "./parts.js";
import { remembered } from "./state.js";
import { createTask, useFirstRun } from "./task.js";
import { html, signal } from "./vendor/preact.mjs";

const METHODS = {
  calibrated: "attention minus the bias of position; shares",
  attention: "attention as it is; shares",
  query_likelihood: "likelihood of the question given the document",
  relevance_prompt: "probability that the model calls it relevant",
};

const fields = remembered("rerank", {
  query: "Who owns the quiet otter?", documents: texts.documents, methods: Object.keys(METHODS), model: "",
}, { documents: isDocuments });
const task = createTask();
// {method, documents, results or problem} of each method that was asked.
const rankings = signal([]);
const ranked = signal("");
const asked = () => JSON.stringify(Object.values(fields).map((one) => one.value));

const isPossible = () => fields.query.value.trim() !== "" && fields.methods.value.length > 0 && fields.documents.value.length > 0;

const run = () => task.run("Ranking …", async (stop) => {
  if (!isPossible()) return;
  const documents = fields.documents.value;
  const now = asked();
  const methods = Object.keys(METHODS).filter((method) => fields.methods.value.includes(method));
  const calls = methods.map((method) => {
    const json = { query: fields.query.value, documents, method, return_documents: false };
    if (fields.model.value) json.model = fields.model.value;
    return { method: "POST", path: "v1/rerank", json };
  });
  task.calls.value = calls;
  const found = await each(calls.map((call) => ask(call, stop)));
  ranked.value = now;
  rankings.value = methods.map((method, i) => ({ method, documents, results: found[i].value?.results, problem: found[i].problem }));
});

function toggle(method) {
  const chosen = fields.methods.value;
  fields.methods.value = chosen.includes(method) ? chosen.filter((one) => one !== method) : [...chosen, method];
}

const shown = (score) => (score !== 0 && Math.abs(score) < 0.001 ? score.toExponential(1) : score.toFixed(3));

function Ranking({ ranking }) {
  const { method, documents, results, problem } = ranking;
  const highest = Math.max(...(results ?? []).map((one) => one.relevance_score), 0);
  return html`<section class="column ranking" aria-label=${method}>
    <h2>${method.replaceAll("_", " ")}</h2>
    <p class="hint">${problem ? html`<span class="wrong">${problem}</span>` : METHODS[method]}</p>
    <ol>${results?.map((one) => html`<li>
      <span class="place number">${one.index + 1}</span>
      <span class="caption">${titleOf(documents[one.index]) && html`<b>${titleOf(documents[one.index])}</b> `}${textOf(documents[one.index])}</span>
      <span class="number">${shown(one.relevance_score)}</span>
      <${Bar} share=${highest > 0 ? one.relevance_score / highest : 0} />
    </li>`)}</ol>
  </section>`;
}

export function Rerank() {
  useFirstRun(run, () => rankings.value.some((one) => one.results));
  const isOld = rankings.value.length > 0 && ranked.value !== asked();
  return html`<${Head}
      title="Rerank" ...${served(isGenerating, fields.model.value)}
      about="The same documents ranked by several methods. The number before a document is its place in your list."
    />
    <label class="field">Question
      <input ...${typed(fields.query, run)} />
    </label>
    <fieldset><legend>Methods</legend>
      ${Object.keys(METHODS).map((method) => html`<label class="choice row-choice"><input
        type="checkbox" checked=${fields.methods.value.includes(method)} onChange=${() => toggle(method)}
      />${method.replaceAll("_", " ")}</label>`)}
    </fieldset>
    <${ModelChoice} isOne=${isGenerating} into=${fields.model} />
    <div class="actions"><${Run} task=${task} label="Rank" onRun=${run} isPossible=${isPossible()} /></div>
    <${Problem} text=${task.problem.value} />
    <p class="hint" role="status">${isOld && "Outdated: ranked before the last change. Rank again."}</p>
    <div class=${isOld ? "columns old" : "columns"} tabindex="0" role="region" aria-label="Rankings by method">${rankings.value.map((one) => html`<${Ranking} key=${one.method} ranking=${one} />`)}</div>
    <${Copy} calls=${task.calls.value} />
    <h2 class="below">Documents</h2>
    <div class="plain-list"><${Documents} documents=${fields.documents.value} onChange=${(list) => (fields.documents.value = list)} onRun=${run} /></div>`;
}
