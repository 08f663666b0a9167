// The page's state, and what changes it: a turn arrives, a key is pressed, a name is given.
import { Actions } from "./actions.js";
import * as api from "./api.js";
import { Component, createRef, html, render } from "./html.js";
import { LABELS, actionOf } from "./keys.js";
import { keysAreOn, knownReviewer, rememberKeys, rememberReviewer, takeToken } from "./memory.js";
import { Pair } from "./pair.js";
import { Progress } from "./progress.js";
import { Problem, TokenNeeded, Welcome } from "./welcome.js";

const ENDS = {
  waiting: "You have judged every pair that needs you now. Some still wait for verdicts of others.",
  between: "The first round is over. The second shows the pairs on which verdicts differ, then those that all found unclear.",
  done: "Nothing is left to judge.",
};

class App extends Component {
  state = { view: "loading", names: [], problem: "", said: "", note: "", isBusy: false, areKeysOn: keysAreOn() };
  heading = createRef();
  noteField = createRef();

  componentDidMount() {
    document.addEventListener("keydown", (event) => this.press(event));
    this.open(takeToken());
  }

  componentDidUpdate(_, before) {
    // From the heading on, a screen reader reads the new pair, and no button has the focus that a space would press.
    if (before.turn !== this.state.turn) this.heading.current?.focus();
  }

  async open(token) {
    await this.attempt(async () => {
      if (token) await api.openSession(token);
      const names = await api.reviewers();
      this.setState({ names, view: "welcome" });
      const reviewer = knownReviewer();
      if (reviewer) await this.begin(reviewer);
    });
  }

  async begin(reviewer) {
    const turn = await api.turn(reviewer);
    rememberReviewer(reviewer);
    this.setState({ reviewer, turn, view: "review", note: turn.pair?.note ?? "" });
  }

  // Does one thing at a time, and tells why it failed; what was on the page stays there.
  async attempt(work, whatFailed = "") {
    if (this.isBusy) return;
    this.isBusy = true;
    this.setState({ isBusy: true });
    try {
      await work();
      this.setState({ problem: "" });
    } catch (refused) {
      if (!(refused instanceof api.Refused)) throw refused;
      this.setState({ problem: `${whatFailed} ${refused.message}`.trim(), said: "" });
      if (refused.status === 401) this.setState({ view: "token" });
    } finally {
      this.isBusy = false;
      this.setState({ isBusy: false });
    }
  }

  press(event) {
    if (this.state.view !== "review" || !this.state.areKeysOn) return;
    const action = actionOf(event);
    if (action === null) return;
    event.preventDefault();
    this.act(action);
  }

  act(action) {
    const { turn, reviewer, note } = this.state;
    if (action === "note") this.noteField.current?.focus();
    else if (action === "undo") {
      if (turn.can_undo) this.attempt(() => this.show(api.undo(reviewer, turn.round), "Undone."), "Not undone.");
    } else if (action === "next") this.goOn();
    else if (turn.pair) {
      const verdict = { reviewer, id: turn.pair.id, round: turn.round, verdict: action, note };
      this.attempt(
        () => this.show(api.judge(verdict), `Saved: ${LABELS[action]}.`),
        "The verdict may not be saved; give it again.",
      );
    }
  }

  goOn() {
    const { turn, reviewer } = this.state;
    const where = turn.pair
      ? { after: turn.pair.id, secondRound: turn.round === 2 }
      : { secondRound: turn.stage === "between" };
    this.attempt(() => this.show(api.turn(reviewer, where), ""));
  }

  async show(answer, said) {
    const turn = await answer;
    this.setState({ turn, said, note: turn.pair?.note ?? "" });
    // Keys are not kept waiting for it.
    if (this.state.isSummaryOpen) this.summarize();
  }

  async summarize() {
    try {
      this.setState({ summary: await api.summary() });
    } catch (refused) {
      this.setState({ problem: refused.message });
    }
  }

  toggleSummary(isSummaryOpen) {
    this.setState({ isSummaryOpen });
    if (isSummaryOpen) this.summarize();
  }

  render(_, state) {
    if (state.view === "loading") return html`<main class="ask"><${Problem} text=${state.problem} /></main>`;
    if (state.view === "token") return html`<${TokenNeeded} problem=${state.problem} onToken=${(token) => this.open(token)} />`;
    if (state.view === "welcome") {
      const begin = (name) => this.attempt(() => this.begin(name));
      return html`<${Welcome} names=${state.names} problem=${state.problem} onName=${begin} />`;
    }
    return this.renderReview(state);
  }

  renderReview({ turn, reviewer, problem, said, note, isBusy, areKeysOn, summary }) {
    const { pair, stage, round } = turn;
    const title = pair ? `Pair ${pair.id}` : stage === "between" ? "The second round" : "No pair for you";
    return html`
      <header>
        <h1>Review of hard negatives</h1>
        <p>
          ${round === 2 ? "Second round" : "First round"}: ${turn.num_judged} judged,${" "}
          ${turn.num_left} ${stage === "between" ? "for the second" : "left for you"}
        </p>
        <p>
          <strong>${reviewer}</strong>${" "}
          <button class="plain" onClick=${() => this.setState({ view: "welcome" })}>Not you?</button>
        </p>
      </header>
      <main>
        <h2 ref=${this.heading} tabindex="-1">${title} ${pair && html`<span class="kind">${pair.kind.replace("_", " ")}</span>`}</h2>
        ${pair
          ? html`<${Pair}
              pair=${pair}
              note=${note}
              noteRef=${this.noteField}
              onNote=${(text) => this.setState({ note: text })}
              onLeave=${() => this.heading.current?.focus()}
            />`
          : html`<p class="end">${ENDS[stage]}</p>`}
        ${stage === "between" && html`<button class="primary" onClick=${() => this.goOn()}><kbd>Space</kbd> Begin the second round</button>`}
        ${stage === "waiting" && html`<button class="primary" onClick=${() => this.goOn()}><kbd>Space</kbd> Look again</button>`}
        <${Problem} text=${problem} />
        <${Actions} canJudge=${Boolean(pair)} canUndo=${turn.can_undo} isBusy=${isBusy} onAction=${(name) => this.act(name)} />
        <p class="said" role="status">${said}</p>
        <${Progress} summary=${summary} onToggle=${(isOpen) => this.toggleSummary(isOpen)} />
        <label class="keys">
          <input type="checkbox" checked=${areKeysOn} onChange=${(event) => this.switchKeys(event.target.checked)} />
          ${" "}Judge by single keys
        </label>
      </main>
    `;
  }

  switchKeys(areKeysOn) {
    rememberKeys(areKeysOn);
    this.setState({ areKeysOn });
  }
}

render(html`<${App} />`, document.getElementById("app"));
