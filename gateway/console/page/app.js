// The page: its views, the way between them, and the key.
import { hasReview, isKeyWanted, key, loadHealth, loadModels, modelsProblem } from "./api.js";
import { Ask } from "./ask.js";
import { Predict } from "./predict.js";
import { Rerank } from "./rerank.js";
import { Review } from "./review.js";
import { Score } from "./score.js";
import { Search } from "./search.js";
import { view } from "./state.js";
import { Status } from "./status.js";
import { effect, html, render, useEffect, useRef } from "./vendor/preact.mjs";

const PLACES = [
  ["score", "Score", Score],
  ["ask", "Ask", Ask],
  ["search", "Search", Search],
  ["rerank", "Rerank", Rerank],
  ["predict", "Predict", Predict],
  ["review", "Review", Review],
  ["status", "Status", Status],
];

function KeyForm() {
  const dialog = useRef(null);
  const field = useRef(null);
  useEffect(() => effect(() => {
    if (isKeyWanted.value && !dialog.current.open) dialog.current.showModal();
  }), []);
  const submit = async () => {
    key.value = field.current.value.trim();
    isKeyWanted.value = false;
    await loadModels();
    if (!modelsProblem.value) window.dispatchEvent(new Event("key-changed"));
  };
  return html`<button class="plain" onClick=${() => dialog.current.showModal()}>
      ${key.value ? "Change the key" : "Key"}
    </button>
    <dialog ref=${dialog} aria-labelledby="key-title" onClose=${() => (isKeyWanted.value = false)}>
      <form method="dialog" onSubmit=${submit}>
        <h2 id="key-title">API key</h2>
        <p>${modelsProblem.value || "Needed only where the gateway is configured with keys."}</p>
        <label class="field">Key<input ref=${field} type="password" autocomplete="off" spellcheck=${false} /></label>
        <p class="hint">It is kept in this page's memory: a reload forgets it.</p>
        <button class="primary">Use it</button>
        <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
      </form>
    </dialog>`;
}

function App() {
  const isFirst = useRef(true);
  const [, title, View] = PLACES.find(([name]) => name === view.value);
  useEffect(() => {
    document.title = `${title} · Fovea console`;
    if (!isFirst.current) document.querySelector("h1").focus({ preventScroll: true });
    isFirst.current = false;
    loadHealth();
  }, [title]);
  const places = PLACES.filter(([name]) => name !== "review" || name === view.value || hasReview());
  return html`<header class="top">
      <a class="skip" href="#main" onClick=${(event) => {
        event.preventDefault();
        document.querySelector("h1").focus();
      }}>To the content</a>
      <p class="brand"><img src="console/icon.svg" alt="" width="22" height="22" /> Fovea</p>
      <nav aria-label="Views">
        ${places.map(([name, text]) => html`<a
          href=${`#${name}`} aria-current=${name === view.value ? "page" : undefined}
        >${text}</a>`)}
      </nav>
      <${KeyForm} />
    </header>
    ${modelsProblem.value && html`<p class="problem wide" role="alert">${modelsProblem.value}</p>`}
    <main id="main"><${View} key=${title} /></main>`;
}

loadModels();
// A review begins and ends while the page is open.
document.addEventListener("visibilitychange", () => !document.hidden && loadHealth());
render(html`<${App} />`, document.getElementById("app"));
