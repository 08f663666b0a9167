// Score: which caption is true of a picture, and where each of its words looks.
import { ask } from "./api.js";
import texts from "./examples/texts.js";
import { Spotlight } from "./heatmap.js";
import { Bar, Copy, Head, ModelChoice, Problem, Run, isScoring, percent, served } from "./parts.js";
import { PictureInput, example, noPicture, ownPicture } from "./picture.js";
import { remembered } from "./state.js";
import { createTask, useFirstRun } from "./task.js";
import { batch, html, signal } from "./vendor/preact.mjs";

const CAPTIONS = texts.captions;
const EXAMPLES = Object.keys(CAPTIONS);

const fields = remembered("score", { picture: EXAMPLES[0], captions: CAPTIONS[EXAMPLES[0]], model: "" });
const task = createTask();
const picture = signal(noPicture);
const answer = signal(null);
const kinds = signal({});
const chosen = signal(0);
const word = signal(-1);

const lines = () => fields.captions.value.map((line) => line.trim()).filter(Boolean);

function scoreCall() {
  const { name, blob, source } = picture.value;
  const form = [["file", { blob, name, source }], ...lines().map((line) => ["captions", line]), ["explain", "true"]];
  if (fields.model.value) form.push(["model", fields.model.value]);
  return { method: "POST", path: "score", form };
}

async function readPicture() {
  if (picture.value.blob) return;
  picture.value = await (EXAMPLES.includes(fields.picture.value) ? example(fields.picture.value) : ownPicture("score"));
}

async function score(stop) {
  await readPicture();
  if (!picture.value.blob || lines().length === 0) return;
  const call = scoreCall();
  task.calls.value = [call];
  let found;
  try {
    found = await ask(call, stop);
  } catch (refused) {
    // A model without tokens scores, but explains nothing.
    if (refused.param !== "explain") throw refused;
    call.form = call.form.filter(([name]) => name !== "explain");
    found = await ask(call, stop);
  }
  batch(() => {
    answer.value = found;
    chosen.value = found.best;
    word.value = -1;
  });
}

const run = () => task.run("Scoring …", score);

function addNegatives(caption) {
  return task.run("Making hard negatives …", async (stop) => {
    const call = { method: "POST", path: "hard-negatives", json: { caption, kinds: ["relation", "negclip", "replace", "negate"] } };
    const { negatives } = await ask(call, stop);
    const known = new Set(lines());
    const added = negatives.filter(({ text }) => !known.has(text));
    batch(() => {
      fields.captions.value = [...lines(), ...new Set(added.map(({ text }) => text))];
      kinds.value = { ...kinds.value, ...Object.fromEntries(added.map(({ kind, text }) => [text, kind])) };
    });
    await score(stop);
    task.calls.value = [call, ...task.calls.value];
  });
}

function choose(next) {
  const before = picture.value.source?.split("/").pop();
  const name = next.source ? next.source.split("/").pop() : "";
  const isOwn = JSON.stringify(lines()) !== JSON.stringify(CAPTIONS[before]);
  batch(() => {
    picture.value = next;
    fields.picture.value = name;
    if (!isOwn && CAPTIONS[name]) fields.captions.value = CAPTIONS[name];
    answer.value = null;
  });
  run();
}

function Words({ explained, mode }) {
  return html`<section aria-label="Where each word looks">
    <h2>Where each word looks</h2>
    <p class="hint">Of the marked caption: bright is where the word matches the picture, dark where it does not. Point at a word, or go to it by Tab, to see it large.</p>
    <ul class="words">
      ${explained.tokens.slice(0, -1).map((token, i) => html`<li>
        <button
          aria-pressed=${word.value === i}
          onMouseEnter=${() => (word.value = i)} onMouseLeave=${() => (word.value = -1)}
          onFocus=${() => (word.value = i)} onBlur=${() => (word.value = -1)} onClick=${() => (word.value = i)}
        ><${Spotlight} url=${picture.value.url} heat=${explained.heatmaps[i]} mode=${mode} size=${180} label=${`Attention of ${token}`} />
        <span>${token.replace(/^##/, "…")}</span></button>
      </li>`)}
    </ul>
  </section>`;
}

function Scores({ found }) {
  return html`<ol class="scores" aria-label="Captions by score">
    ${found.scores.map((one) => html`<li class=${one.index === found.best ? "best" : ""}>
      <button
        class="row" aria-pressed=${chosen.value === one.index}
        onClick=${() => (chosen.value = one.index)}
      >
        <span class="caption">${one.caption} ${kinds.value[one.caption] && html`<span class="tag">${kinds.value[one.caption]}</span>`}</span>
        <span class="number">${percent(one.probability)}</span>
        <${Bar} share=${one.probability} kind=${one.index === found.best ? "" : "pale"} />
        <span class="hint">score ${one.score.toFixed(3)}${one.local === null ? "" : ` · whole ${one.global.toFixed(3)} · words ${one.local.toFixed(3)}`}${one.match == null ? "" : ` · match ${percent(one.match)}`}</span>
      </button>
    </li>`)}
  </ol>`;
}

export function Score() {
  useFirstRun(run, () => answer.value !== null);
  const found = answer.value;
  const explained = found?.explain?.[chosen.value];
  const large = explained && word.value >= 0 ? explained.heatmaps[word.value] : null;
  const marked = found?.scores[chosen.value]?.caption ?? lines()[0];
  const { mode, ...about } = served(isScoring, fields.model.value);
  return html`<${Head}
      title="Score" ...${about}
      about="Which caption is true of the picture? Word order counts, and every word shows where it looks."
    />
    <div class="two">
      <${PictureInput} view="score" picture=${picture.value} onPicture=${choose} examples=${EXAMPLES} label="Choose a picture …">
        ${large && html`<div class="overlay"><${Spotlight} url=${picture.value.url} heat=${large} mode=${mode} size=${640} label=${`Attention of ${explained.tokens[word.value]}`} /></div>`}
      <//>
      <div>
        <label class="field">Captions, one a line
          <textarea
            rows=${Math.max(4, fields.captions.value.length + 1)} spellcheck=${false}
            value=${fields.captions.value.join("\n")}
            onInput=${(event) => (fields.captions.value = event.target.value.split("\n"))}
            onKeyDown=${(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && run()}
          ></textarea>
        </label>
        <${ModelChoice} isOne=${isScoring} into=${fields.model} />
        <div class="actions">
          <${Run} task=${task} label="Score" onRun=${run}>
            <button aria-disabled=${!marked} onClick=${() => marked && addNegatives(marked)}>Add hard negatives</button>
          <//>
        </div>
        <${Problem} text=${task.problem.value} />
        ${found && html`<${Scores} found=${found} />
          <p class="hint">A probability compares these captions with each other: one of them leads even if none is true.</p>`}
        <${Copy} calls=${task.calls.value} />
      </div>
    </div>
    ${explained && html`<${Words} explained=${explained} mode=${mode} />`}`;
}
