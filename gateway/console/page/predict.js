// Predict: a form for each served task, its label with probabilities, and the student's reason.
import { ask } from "./api.js";
import examples from "./examples/texts.js";
import { Bar, Copy, Head, Problem, Run, percent } from "./parts.js";
import { remembered } from "./state.js";
import { createTask, useFirstRun } from "./task.js";
import { batch, html, signal } from "./vendor/preact.mjs";

// For tasks that have these very fields, as the starters' do.
const EXAMPLES = examples.inputs;

const fields = remembered("predict", { task: "inferences", inputs: "{}", rationale: true });
const task = createTask();
const tasks = signal(null);
const answer = signal(null);

function current() {
  return tasks.value?.find((one) => one.id === fields.task.value) ?? tasks.value?.[0];
}

// The fields' texts of all tasks, by task. A link may hold anything.
function texts() {
  try {
    const given = JSON.parse(fields.inputs.value);
    return given && typeof given === "object" ? given : {};
  } catch {
    return {};
  }
}

const isTexts = (given) => given && typeof given === "object" && Object.values(given).every((text) => typeof text === "string");

const examplesOf = (one) => EXAMPLES.filter((example) => one.fields.every((name) => name in example));
const textsOf = (one) => (isTexts(texts()[one.id]) ? texts()[one.id] : (examplesOf(one)[0] ?? {}));
const linesOf = (text) => (text ?? "").split("\n").map((line) => line.trim()).filter(Boolean);

function fill(one, given) {
  fields.inputs.value = JSON.stringify({ ...texts(), [one.id]: given });
}

function predictCall(one) {
  const given = textsOf(one);
  const input = Object.fromEntries(one.fields.map((name) => [name, name === one.choices ? linesOf(given[name]) : given[name] ?? ""]));
  const json = { task: one.id, inputs: [input], probabilities: one.labels !== null || one.choices !== null, rationale: one.rationales && fields.rationale.value };
  return { method: "POST", path: "predict", json };
}

async function loadTasks(stop) {
  tasks.value = (await ask({ path: "tasks" }, stop)).data;
}

const run = () => task.run("Predicting …", async (stop) => {
  if (!tasks.value?.length) await loadTasks(stop);
  const one = current();
  if (!one) return;
  const call = predictCall(one);
  task.calls.value = [call];
  const found = await ask(call, stop);
  answer.value = { task: one.id, ...found.predictions[0] };
});

function choose(name) {
  batch(() => {
    fields.task.value = name;
    answer.value = null;
  });
  run();
}

function Answer({ found }) {
  const fact = (name, text) => html`<dt>${name}</dt><dd>${text}</dd>`;
  const list = (name, some) => some?.length > 0 && fact(name, some.join(", "));
  const ordered = Object.entries(found.probabilities ?? {}).sort(([, a], [, b]) => b - a);
  return html`<section class="answer" aria-label="Prediction">
    <p class="text">${found.label}${found.value != null && html` <span class="value">= ${found.value}</span>`}</p>
    ${ordered.length > 0 && html`<ul class="labels">${ordered.map(([label, probability], i) => html`<li>
      <span class="caption">${label}</span><span class="number">${percent(probability)}</span>
      <${Bar} share=${probability} kind=${i === 0 ? "" : "pale"} />
    </li>`)}</ul>`}
    <dl>
      ${ordered.length === 0 && fact("Probability", percent(found.probability))}
      ${found.confidence != null && fact("Confidence", `${percent(found.confidence)}, how often such an answer is right`)}
      ${found.rationale != null && fact("Reason", found.rationale)}
      ${list("Numbers not used", found.unused_numbers)}
      ${list("Numbers not read", found.unread_numbers)}
    </dl>
    ${found.rationale != null && html`<p class="hint">The student writes its reason apart from its label; the two may contradict each other.</p>`}
  </section>`;
}

function Form({ one }) {
  const given = textsOf(one);
  const isWhole = one.fields.every((name) => (given[name] ?? "").trim() !== "");
  return html`<form onSubmit=${(event) => { event.preventDefault(); run(); }}>
    ${one.fields.map((name) => html`<label class="field" key=${`${one.id}.${name}`}>${name}${name === one.choices ? ", one a line" : ""}
      <textarea
        rows=${name === one.choices ? 4 : 3} value=${given[name] ?? ""} onInput=${(event) => fill(one, { ...given, [name]: event.target.value })}
        onKeyDown=${(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && isWhole && run()}
      ></textarea>
    </label>`)}
    ${one.rationales && html`<label class="choice"><input
      type="checkbox" checked=${fields.rationale.value} onChange=${(event) => (fields.rationale.value = event.target.checked)}
    />Ask for the reason</label>`}
    <div class="actions spaced"><${Run} task=${task} label="Predict" onRun=${run} isPossible=${isWhole} /></div>
  </form>`;
}

export function Predict() {
  useFirstRun(run, () => answer.value !== null);
  const one = current();
  return html`<${Head}
      title="Predict" statement=${one?.statement} isThere=${Boolean(one)} load=${loadTasks}
      about="A label with its probabilities, and the reason that the student was taught to give."
    />
    ${one && html`<fieldset><legend>Task</legend>
      ${tasks.value.map(({ id }) => html`<label class="choice row-choice"><input
        type="radio" name="task" checked=${id === one.id} onChange=${() => choose(id)}
      />${id}</label>`)}
    </fieldset>
    <div class="choices examples" role="group" aria-label="Examples">
      ${examplesOf(one).map((example) => html`<button class="small" onClick=${() => { fill(one, example); run(); }}>${Object.values(example).at(-1)}</button>`)}
    </div>`}
    <div class="two">
      <div>${one && html`<${Form} one=${one} />`}<${Problem} text=${task.problem.value} /></div>
      <div>
        ${answer.value?.task === one?.id && answer.value && html`<${Answer} found=${answer.value} />`}
        <${Copy} calls=${task.calls.value} />
      </div>
    </div>`;
}
