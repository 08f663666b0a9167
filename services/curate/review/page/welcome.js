// What is asked before the first pair: a reviewer's name, and the token where the server wants one.
import { html } from "./html.js";
import { TASKS } from "./tasks.js";

// One function for all renderings: a new one each time would take the focus back while somebody types elsewhere.
const focus = (field) => field?.focus();

export function Welcome({ title, task, names, problem, onName }) {
  const submit = (event) => {
    event.preventDefault();
    onName(event.target.elements.reviewer.value);
  };
  return html`<div class="ask">
    ${title && html`<h1>${title}</h1>`}
    <p>${TASKS[task].intro} ${TASKS[task].question}</p>
    <form onSubmit=${submit}>
      <label for="reviewer">Your name</label>
      <input id="reviewer" ref=${focus} name="reviewer" list="names" maxlength="64" required autocomplete="nickname" />
      <datalist id="names">${names.map((name) => html`<option value=${name}></option>`)}</datalist>
      <button class="primary">Begin</button>
    </form>
    <${Problem} text=${problem} />
  </div>`;
}

export function TokenNeeded({ title, problem, onToken }) {
  const submit = (event) => {
    event.preventDefault();
    onToken(event.target.elements.token.value.trim());
  };
  return html`<div class="ask">
    ${title && html`<h1>${title}</h1>`}
    <p>This review needs the token that its address was sent with.</p>
    <form onSubmit=${submit}>
      <label for="token">Token</label>
      <input id="token" ref=${focus} name="token" type="password" required autocomplete="off" />
      <button class="primary">Open</button>
    </form>
    <${Problem} text=${problem} />
  </div>`;
}

// Always in the page, so that screen readers notice when it fills.
export function Problem({ text }) {
  return html`<p class="problem" role="alert">${text}</p>`;
}
