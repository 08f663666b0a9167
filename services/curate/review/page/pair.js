// One pair: its image and its texts, perhaps with the words marked in which they differ, and earlier verdicts on it.
import { Component, html } from "./html.js";
import { labelOf } from "./tasks.js";

const HEADINGS = {
  caption: "Caption",
  negative_caption: "Negative caption",
  second_caption: "Second caption",
  first: "First",
  second: "Second",
};

function Caption({ role, runs }) {
  return html`<section class="caption ${role}">
    <h3>${HEADINGS[role]}</h3>
    <p>${runs.map(([text, isMarked]) => (isMarked ? html`<mark>${text}</mark>` : text))}</p>
  </section>`;
}

class Picture extends Component {
  state = { isBroken: false, address: "" };

  async componentDidMount() {
    const { problem, filename, addressOf } = this.props;
    if (problem) return;
    try {
      this.address = await addressOf(filename);
      if (this.isOver) this.release();
      else this.setState({ address: this.address });
    } catch {
      this.setState({ isBroken: true });
    }
  }

  componentWillUnmount() {
    this.isOver = true;
    this.release();
  }

  // An address that was made for an image holds the image in memory.
  release() {
    if (this.address) URL.revokeObjectURL(this.address);
  }

  render({ filename, problem }, { isBroken, address }) {
    const said = problem ?? (isBroken && `The image ${filename} can't be shown.`);
    if (said) return html`<p class="missing" role="alert">${said}</p>`;
    if (!address) return null;
    return html`<a href=${address} target="_blank" rel="noopener">
      <img src=${address} alt=${`The image ${filename}; opens in full size`} onError=${() => this.setState({ isBroken: true })} />
    </a>`;
  }
}

function Earlier({ task, verdicts }) {
  if (!verdicts.length) return null;
  return html`<section class="earlier">
    <h3>Verdicts so far</h3>
    <ul>
      ${verdicts.map(
        ({ reviewer, verdict, round, note }) =>
          html`<li>
            <strong>${reviewer}</strong>: ${labelOf(task, verdict)}${round === 2 && " (second round)"}${note && ` – “${note}”`}
          </li>`,
      )}
    </ul>
  </section>`;
}

export function Pair({ task, pair, addressOf, note, noteRef, onNote, onLeave }) {
  const { filename, problem } = pair;
  return html`<div class=${filename ? "pair" : "pair texts-only"}>
    ${filename && html`<figure><${Picture} key=${pair.id} addressOf=${addressOf} filename=${filename} problem=${problem} /></figure>`}
    <div class="texts">
      ${pair.texts.map((text) => html`<${Caption} ...${text} />`)}
      <${Earlier} task=${task} verdicts=${pair.earlier} />
      <label for="note">Note <kbd class="keyboard">N</kbd></label>
      <textarea
        id="note"
        ref=${noteRef}
        rows="2"
        maxlength="2000"
        aria-describedby="note-hint"
        value=${note}
        onInput=${(event) => onNote(event.target.value)}
        onKeyDown=${(event) => event.key === "Escape" && onLeave()}
      ></textarea>
      <p class="hint" id="note-hint">
        Saved with the verdict.<span class="keyboard"> <kbd>Esc</kbd> returns to the keys.</span>
      </p>
    </div>
  </div>`;
}
