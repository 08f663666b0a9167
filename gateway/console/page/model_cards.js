// What each service serves: its models, and the versions of each in the store with their aliases.
import { ask, each, health, models } from "./api.js";
import { html, signal } from "./vendor/preact.mjs";

// {data, followed} or {problem} by model.
const stored = signal({});
const seen = new Map();

// By what the API tells of a model of each service alone.
const SERVICES = { local_weight: "score", dimensions: "embed", calibration: "generate", task: "predict" };
const serviceOf = (model) => SERVICES[Object.keys(SERVICES).find((name) => name in model)];
const isDown = (model) => health.value?.checks[serviceOf(model)]?.ok === false;

const versionCall = (id) => ({ path: `v1/models/${encodeURIComponent(id)}/versions` });
export const versionCalls = () => models.value.map(({ id }) => versionCall(id));

export async function loadVersions() {
  const ids = models.value.map(({ id }) => id);
  const found = await each(ids.map((id) => ask(versionCall(id))));
  stored.value = { ...stored.value, ...Object.fromEntries(ids.map((id, i) => [id, { ...found[i].value, problem: found[i].problem }])) };
}

const day = (unix) => new Date(unix * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB`;

function Version({ one }) {
  return html`<li>
    <p><code>${one.version}</code> ${one.aliases.map((alias) => html`<span class="tag">${alias}</span> `)}
      ${one.serving && html`<span class="right">● serving</span>`}${one.refusal && html`<span class="wrong">○ refused</span>`}</p>
    <p class="hint">published ${day(one.created)}, ${megabytes(one.size_bytes)}</p>
    ${one.refusal && html`<p class="hint wrong">${one.refusal}</p>`}
  </li>`;
}

function Versions({ known }) {
  if (known.problem) return html`<p class="hint wrong">${known.problem}</p>`;
  if (!known.data) return null;
  const older = known.data.filter((one) => !one.serving && !one.refusal && one.aliases.length === 0);
  const list = (versions) => html`<ul class="versions">${versions.map((one) => html`<${Version} key=${one.version} one=${one} />`)}</ul>`;
  return html`<h4>Versions in the store</h4>
    ${list(known.data.filter((one) => !older.includes(one)))}
    ${older.length > 0 && html`<details><summary>${older.length} more without an alias</summary>${list(older)}</details>`}`;
}

function Model({ model }) {
  const calibration = model.calibration;
  const known = stored.value[model.id] ?? {};
  const facts = [
    ["service", serviceOf(model)], ["follows", known.followed], ["kind", model.kind], ["task", model.task], ["longest input", model.max_model_len && `${model.max_model_len} tokens`],
    ["dimensions", model.dimensions], ["calibration", calibration && (calibration.enabled ? `on, ${calibration.bias}, t = ${calibration.temperature}` : "off")],
    ["weight of words", model.local_weight],
  ].filter(([, value]) => value !== undefined && value !== null && value !== false);
  return html`<li class="answer">
    <h3>${model.id} ${isDown(model) ? html`<span class="hint wrong">its service is not ready</span>` : html`<span class=${model.loaded === false ? "hint" : "hint right"}>${model.loaded === false ? "not in memory" : "in memory"}</span>`}</h3>
    <p class="hint">${model.statement ?? ""}</p>
    <dl>${facts.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>
    <${Versions} known=${known} />
  </li>`;
}

// Those of a service that is down stay.
export function Models() {
  for (const one of models.value) seen.set(one.id, one);
  const shown = [...seen.values()].filter((one) => models.value.includes(one) || isDown(one));
  return html`<ul class="models">${shown.map((model) => html`<${Model} key=${model.id} model=${model} />`)}</ul>`;
}
