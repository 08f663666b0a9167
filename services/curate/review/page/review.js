// The review on a page: its state, and what changes it: a turn arrives, a key is pressed, a name is given.
import { Actions } from "./actions.js";
import { Api, own } from "./api.js";
import { Component, createRef, html, render } from "./html.js";
import { actionOf } from "./keys.js";
import { keysAreOn, rememberKeys } from "./memory.js";
import { Pair } from "./pair.js";
import { Progress } from "./progress.js";
import { TASKS, labelOf } from "./tasks.js";
import { Problem, TokenNeeded, Welcome } from "./welcome.js";

const ENDS = {
  waiting: "You have judged every pair that needs you now. Some still wait for verdicts of others.",
  between: "The first round is over. The second shows the pairs on which verdicts differ, then those that all found unclear.",
  done: "Nothing is left to judge.",
};

class Review extends Component {
  state = { view: "loading", names: [], problem: "", said: "", note: "", isBusy: false, areKeysOn: keysAreOn() };
  heading = createRef();
  noteField = createRef();
  api = new Api(this.props.server);

  componentDidMount() {
    document.addEventListener("keydown", this.press);
    this.open(this.props.token);
  }

  componentWillUnmount() {
    document.removeEventListener("keydown", this.press);
  }

  componentDidUpdate(_, before) {
    // From the heading on, a screen reader reads the new pair, and no button has the focus that a space would press.
    if (before.turn !== this.state.turn) this.heading.current?.focus();
  }

  async open(token) {
    await this.attempt(async () => {
      if (token) await this.api.openSession(token);
      const { task, reviewers } = await this.api.about();
      this.setState({ task, names: reviewers, view: "welcome" });
      if (this.props.reviewer) await this.begin(this.props.reviewer);
    });
  }

  async begin(reviewer) {
    const turn = await this.api.turn(reviewer);
    this.props.onReviewer(reviewer);
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
      if (refused.status === undefined) throw refused;
      this.setState({ problem: `${whatFailed} ${refused.message}`.trim(), said: "" });
      if (refused.code === "invalid_token") this.setState({ view: "token" });
    } finally {
      this.isBusy = false;
      this.setState({ isBusy: false });
    }
  }

  press = (event) => {
    if (this.state.view !== "review" || !this.state.areKeysOn) return;
    const action = actionOf(event, this.state.task);
    if (action === null) return;
    event.preventDefault();
    this.act(action);
  };

  act(action) {
    const { task, turn, reviewer, note } = this.state;
    if (action === "note") this.noteField.current?.focus();
    else if (action === "undo") {
      if (turn.can_undo) this.attempt(() => this.show(this.api.undo(reviewer, turn.round), "Undone."), "Not undone.");
    } else if (action === "next") this.goOn();
    else if (turn.pair) {
      const verdict = { reviewer, id: turn.pair.id, round: turn.round, verdict: action, note };
      this.attempt(
        () => this.show(this.api.judge(verdict), `Saved: ${labelOf(task, action)}.`),
        "The verdict may not be saved; give it again.",
      );
    }
  }

  goOn() {
    const { turn, reviewer } = this.state;
    const where = turn.pair
      ? { after: turn.pair.id, secondRound: turn.round === 2 }
      : { secondRound: turn.stage === "between" };
    this.attempt(() => this.show(this.api.turn(reviewer, where), ""));
  }

  async show(answer, said) {
    const turn = await answer;
    this.setState({ turn, said, note: turn.pair?.note ?? "" });
    // Keys are not kept waiting for it.
    if (this.state.isSummaryOpen) this.summarize();
  }

  async summarize() {
    try {
      this.setState({ summary: await this.api.summary() });
    } catch (refused) {
      this.setState({ problem: refused.message });
    }
  }

  async download() {
    const link = document.createElement("a");
    link.href = await this.api.exported();
    link.download = "verdicts.jsonl";
    link.click();
  }

  toggleSummary(isSummaryOpen) {
    this.setState({ isSummaryOpen });
    if (isSummaryOpen) this.summarize();
  }

  render({ title }, state) {
    const { view, problem } = state;
    if (view === "loading") return html`<div class="ask"><${Problem} text=${problem} /></div>`;
    if (view === "token") return html`<${TokenNeeded} title=${title} problem=${problem} onToken=${(token) => this.open(token)} />`;
    if (view === "welcome") {
      const begin = (name) => this.attempt(() => this.begin(name));
      return html`<${Welcome} title=${title} task=${state.task} names=${state.names} problem=${problem} onName=${begin} />`;
    }
    return this.renderReview(title, state);
  }

  renderReview(heading, { task, turn, reviewer, problem, said, note, isBusy, areKeysOn, summary }) {
    const { pair, stage, round } = turn;
    const { question } = TASKS[task];
    const title = pair ? `Pair ${pair.kind ? pair.id : pair.number}` : stage === "between" ? "The second round" : "No pair for you";
    return html`
      <div class="bar">
        ${heading && html`<h1>${heading}</h1>`}
        <p>
          ${!question && (round === 2 ? "Second round: " : "First round: ")}${turn.num_judged} judged,${" "}
          ${turn.num_left} ${stage === "between" ? "for the second" : "left for you"}
        </p>
        <p>
          <strong>${reviewer}</strong>${" "}
          <button class="plain" onClick=${() => this.setState({ view: "welcome" })}>Not you?</button>
        </p>
      </div>
      <div>
        <h2 ref=${this.heading} tabindex="-1">${title} ${pair?.kind && html`<span class="kind">${pair.kind.replace("_", " ")}</span>`}</h2>
        ${pair && question && html`<p class="question">${question}</p>`}
        ${pair
          ? html`<${Pair}
              task=${task}
              pair=${pair}
              addressOf=${this.api.image}
              note=${note}
              noteRef=${this.noteField}
              onNote=${(text) => this.setState({ note: text })}
              onLeave=${() => this.heading.current?.focus()}
            />`
          : html`<p class="end">${ENDS[stage]}</p>`}
        ${stage === "between" && html`<button class="primary" onClick=${() => this.goOn()}><kbd>Space</kbd> Begin the second round</button>`}
        ${stage === "waiting" && html`<button class="primary" onClick=${() => this.goOn()}><kbd>Space</kbd> Look again</button>`}
        <${Problem} text=${problem} />
        <${Actions} task=${task} canJudge=${Boolean(pair)} canUndo=${turn.can_undo} isBusy=${isBusy} onAction=${(name) => this.act(name)} />
        <p class="said" role="status">${said}</p>
        <${Progress}
          task=${task}
          summary=${summary}
          onToggle=${(isOpen) => this.toggleSummary(isOpen)}
          onDownload=${() => this.attempt(() => this.download(), "Not downloaded.")}
        />
        <label class="keys">
          <input type="checkbox" checked=${areKeysOn} onChange=${(event) => this.switchKeys(event.target.checked)} />
          ${" "}Judge by single keys
        </label>
      </div>
    `;
  }

  switchKeys(areKeysOn) {
    rememberKeys(areKeysOn);
    this.setState({ areKeysOn });
  }
}

// Show the review in an element, and return what takes it away again. `title`: its heading, if the page has none;
// `reviewer`: whose turn it is at first; `onReviewer`: is told of another; `token`: of the review's address.
export function mount(element, { server = own, title = "", reviewer = "", onReviewer, token = "" }) {
  const props = { server, title, reviewer, onReviewer, token };
  render(html`<${Review} ...${props} />`, element);
  return () => render(null, element);
}
