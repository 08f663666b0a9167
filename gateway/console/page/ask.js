// Ask: the same question answered uncalibrated and calibrated, and what each document's attention was and became.
import { ask, askStream } from "./api.js";
import { generateCall, isRight, profileOf, sharesAfter, sharesBefore, tokensCall } from "./attention.js";
import { Documents, isDocuments } from "./documents.js";
import texts from "./examples/texts.js";
import { Layers } from "./layers.js";
import { Bar, Copy, Head, ModelChoice, Problem, Run, chosen, isGenerating, percent, served, typed } from "./parts.js";
import { Places, clearPlaces } from "./places.js";
import { remembered } from "./state.js";
import { createTask, useFirstRun } from "./task.js";
import { batch, html, signal } from "./vendor/preact.mjs";

// `gold` is the document that answers. Made up, like what the starter was trained on.
const QUESTIONS = texts.questions;
const [{ query, documents, gold, expected }] = QUESTIONS;
const fields = remembered(
  "ask",
  { query, documents, gold, expected, model: "", reorder: "none", bias: "", temperature: "", isShaded: true, layers: false },
  { documents: isDocuments },
);
const task = createTask();
// {text, end: the last event, or null, tokens: where asked for} of each answer; null before there is one.
const answers = { uncalibrated: signal(null), calibrated: signal(null) };

export const values = () => Object.fromEntries(Object.entries(fields).map(([name, one]) => [name, one.value]));

// Answers to what was asked before are dropped or stopped.
function clear() {
  task.stop();
  for (const one of Object.values(answers)) one.value = null;
  clearPlaces();
}

async function stream(call, into, stop) {
  let one = (into.value = { text: "", end: null });
  // Unless it was cleared, or a later answer stands there by now.
  const show = (changes) => {
    if (into.value === one) into.value = one = { ...one, ...changes };
  };
  try {
    await askStream(call, stop, (event) => show(event.delta === undefined ? { end: event } : { text: one.text + event.delta }));
  } finally {
    if (!one.end) show({ isStopped: true });
  }
}

// Tokens are shown only of the very answer that was streamed.
async function shade(call, into, stop) {
  const one = into.value;
  const { choices } = await ask(call, stop);
  if (into.value !== one) return;
  const isSame = choices[0].message.content.trim() === one.text.trim();
  into.value = { ...one, ...(isSame ? { tokens: choices[0].logprobs.content } : { differs: true }) };
}

const run = () => task.run("Answering …", async (stop) => {
  const asked = ["uncalibrated", "calibrated"];
  const calls = asked.map((name) => generateCall({ ...values(), isCalibrated: name === "calibrated" }));
  task.calls.value = calls;
  await Promise.all(calls.map((call, i) => stream(call, answers[asked[i]], stop)));
  if (!fields.isShaded.value) return;
  const again = calls.map(tokensCall);
  task.calls.value = [...calls, ...again];
  await Promise.all(again.map((call, i) => shade(call, answers[asked[i]], stop)));
});

function show(question) {
  batch(() => {
    for (const name of ["query", "documents", "gold", "expected"]) fields[name].value = question[name];
    clear();
  });
  run();
}

// In any order.
const isShown = (one) => fields.query.value === one.query && isSame([...fields.documents.value].sort(), [...one.documents].sort());
const isSame = (some, others) => JSON.stringify(some) === JSON.stringify(others);

// An example's gold says nothing of another question; what the visitor chose stays.
function change(make) {
  batch(() => {
    const example = QUESTIONS.find(isShown);
    const isGold = example && isSame(fields.documents.value[fields.gold.value], example.documents[example.gold]);
    make();
    if (!example || isShown(example)) return;
    if (fields.expected.value === example.expected) fields.expected.value = "";
    if (isGold) fields.gold.value = -1;
  });
}

const reorder = (list, order) => change(() => {
  if (!isSame(list, fields.documents.value)) clear();
  fields.documents.value = list;
  fields.gold.value = order.indexOf(fields.gold.value);
});

// The less probable a token, the darker it is; its title is the probability.
function Token({ token, logprob, isFirst }) {
  const probability = Math.exp(logprob);
  const share = `${Math.round(55 * (1 - probability))}%`;
  return html`<span class="token" title=${percent(probability)} style=${{ "--doubt": share }}>${isFirst ? token.trimStart() : token}</span>`;
}

function Answer({ title, about, one, expected }) {
  const text = one?.text ?? "";
  const mark = one?.end && expected.trim() ? (isRight(text, expected) ? "right" : "wrong") : "";
  return html`<section class="answer" aria-label=${title}>
    <h2>${title} <span class="hint">${about}</span></h2>
    <p class="text" aria-live="polite">
      ${one?.tokens ? one.tokens.map((part, i) => html`<${Token} ...${part} isFirst=${i === 0} />`) : text || (one && !one.isStopped ? "…" : "")}
    </p>
    <p class="hint">
      ${mark && html`<span class=${mark}>${mark === "right" ? "✓ as expected" : "✗ not as expected"}</span> `}
      ${one?.isStopped ? "Stopped. " : ""}${one?.differs ? "Asked again for its tokens, the model answered otherwise. " : ""}
      ${one?.end && one.end.relevance !== null ? `The documents answer this with probability ${percent(one.end.relevance)}.` : ""}
    </p>
  </section>`;
}

function Beside({ i, before, after }) {
  const bar = (name, shares, kind) => html`<span class="share">
    <span class="unseen">${name}</span><${Bar} share=${shares?.[i] ?? 0} kind=${kind} />
    <span class="number">${shares ? percent(shares[i]) : ""}</span>
  </span>`;
  return html`<span class="shares">
      ${bar("before", before, "pale")} ${bar("after", after, "")}
    </span>
    <label class="gold"><input
      type="radio" name="gold" checked=${fields.gold.value === i} onChange=${() => (fields.gold.value = i)}
    /><span class="unseen">Document ${i + 1}</span> answers</label>`;
}

function Calibration({ profile }) {
  const t = profile?.temperature;
  const choose = (name, options) => html`<select ...${chosen(fields[name])}>${options.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select>`;
  return html`<details class="more"><summary>Calibration and order</summary>
    <div class="fields">
      <label class="field">Temperature t ${choose("temperature", [["", `the profile's (${t ?? "none"})`], ["0.00001", "0.00001, sharp"], ["0.0001", "0.0001"], ["0.001", "0.001"], ["0.01", "0.01, flat"]])}</label>
      <label class="field">Estimate of the bias ${choose("bias", [["", `the profile's (${profile?.bias ?? "none"})`], ["exact", "exact"], ["tree", "tree"], ["single", "single"]])}</label>
      <label class="field">Order before answering ${choose("reorder", [["none", "as given"], ["calibrated", "by calibrated attention"], ["attention", "by attention"], ["query_likelihood", "by query likelihood"], ["prompt", "by the model's own word"]])}</label>
      <${ModelChoice} isOne=${isGenerating} into=${fields.model} />
    </div>
  </details>`;
}

export function Ask() {
  useFirstRun(run, () => answers.calibrated.value?.text);
  const profile = profileOf(fields.model.value);
  const end = answers.calibrated.value?.end;
  const reports = end?.documents ?? answers.uncalibrated.value?.end?.documents;
  const isCurrent = reports?.length === fields.documents.value.length;
  const before = isCurrent ? sharesBefore(reports) : null;
  const after = isCurrent && end ? sharesAfter(end.documents, Number(fields.temperature.value) || profile?.temperature) : null;
  return html`<${Head}
      title="Ask" ...${served(isGenerating, fields.model.value)}
      about="One question over your documents, answered with and without calibrated attention."
    />
    <div class="choices examples" role="group" aria-label="Examples">
      ${QUESTIONS.map((one) => html`<button class="small" onClick=${() => show(one)}>${one.name}</button>`)}
    </div>
    <label class="field">Question
      <input ...${typed(fields.query, run)} onInput=${(event) => change(() => (fields.query.value = event.target.value))} />
    </label>
    <div class="actions">
      <${Run} task=${task} label="Ask" onRun=${run} isPossible=${fields.query.value.trim() !== ""}>
        <label class="choice"><input
          type="checkbox" checked=${fields.isShaded.value} onChange=${(event) => { fields.isShaded.value = event.target.checked; run(); }}
        />Shade each token by how sure it was</label>
      <//>
    </div>
    <${Problem} text=${task.problem.value} />
    <div class="two answers">
      <${Answer} title="Uncalibrated" about="as the model attends" one=${answers.uncalibrated.value} expected=${fields.expected.value} />
      <${Answer} title="Calibrated" about="bias of position removed" one=${answers.calibrated.value} expected=${fields.expected.value} />
    </div>
    <h2>Documents</h2>
    <p class="legend hint"><span class="swatch pale"></span> attention before <span class="swatch"></span> after calibration, each as a share of all documents'</p>
    <${Documents}
      documents=${fields.documents.value} onChange=${reorder} onRun=${run}
      beside=${(i) => html`<${Beside} i=${i} before=${before} after=${after} />`}
    />
    <${Layers}
      reports=${isCurrent ? reports : null} after=${after} profile=${profile} gold=${fields.gold.value}
      isOpen=${fields.layers.value} onToggle=${(isOpen) => (fields.layers.value = isOpen)}
    />
    <${Calibration} profile=${profile} />
    <${Copy} calls=${task.calls.value} />
    <${Places} values=${values} expected=${fields.expected} gold=${fields.gold.value} />`;
}
