// Moves the document that answers through all places, and asks at each with and without calibration.
import { ask, each } from "./api.js";
import { generateCall, isRight } from "./attention.js";
import { moved } from "./documents.js";
import { Bar, Problem, Run, typed } from "./parts.js";
import { createTask } from "./task.js";
import { html, signal } from "./vendor/preact.mjs";

const task = createTask();
// A row for each place: [uncalibrated, calibrated] answers.
const rows = signal([]);

export function clearPlaces() {
  task.stop();
  rows.value = [];
}

function walk(given) {
  rows.value = [];
  const count = given.documents.length;
  return task.run(`Place 1 of ${count} …`, async (stop) => {
    for (let place = 0; place < count; place += 1) {
      task.busy.value = `Place ${place + 1} of ${count} …`;
      const documents = moved(given.documents, given.gold, place);
      const calls = [false, true].map((isCalibrated) => ask(generateCall({ ...given, documents, isCalibrated, isStream: false }), stop));
      const answers = await each(calls);
      rows.value = [...rows.value, answers.map(({ value, problem }) => value?.answer ?? problem)];
    }
  });
}

function Share({ title, column, expected }) {
  const right = rows.value.filter((row) => isRight(row[column], expected)).length;
  const total = rows.value.length;
  return html`<div class="total">
    <span>${title}</span><span class="number">${total ? `${right} of ${total}` : ""}</span>
    <${Bar} share=${total ? right / total : 0} kind=${column === 0 ? "pale" : ""} />
  </div>`;
}

function Cell({ answer, expected }) {
  const isGood = isRight(answer, expected);
  return html`<td class=${isGood ? "right" : "wrong"}><span aria-label=${isGood ? "right" : "wrong"}>${isGood ? "✓" : "✗"}</span> ${answer}</td>`;
}

export function Places({ values, expected, gold }) {
  const isChosen = gold in values().documents;
  const isPossible = isChosen && expected.value.trim() !== "" && values().documents.length > 1;
  return html`<section class="places" aria-labelledby="places-title">
    <h2 id="places-title">Does the place matter?</h2>
    <p class="hint">${isChosen ? `Moves document ${gold + 1} from the first place to the last, and asks at each.` : "Choose above the document that answers: it is moved from place to place."} An answer is right if it contains the expected one.</p>
    <div class="actions">
      <label class="field inline">Expected answer <input ...${typed(expected)} /></label>
      <${Run} task=${task} label="Try all places" onRun=${() => walk(values())} isPossible=${isPossible} />
    </div>
    <${Problem} text=${task.problem.value} />
    <div class="two">
      <${Share} title="Uncalibrated" column=${0} expected=${expected.value} />
      <${Share} title="Calibrated" column=${1} expected=${expected.value} />
    </div>
    ${rows.value.length > 0 && html`<table>
      <thead><tr><th scope="col" class="number">Place</th><th scope="col">Uncalibrated</th><th scope="col">Calibrated</th></tr></thead>
      <tbody>${rows.value.map((row, i) => html`<tr>
        <th scope="row" class="number">${i + 1}</th>${row.map((answer) => html`<${Cell} answer=${answer} expected=${expected.value} />`)}
      </tr>`)}</tbody>
    </table>`}
  </section>`;
}
