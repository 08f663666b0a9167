// The key that the page asks with: what it may do, what is left of its limit, and what it has asked for.
import { Refused, ask } from "./api.js";
import { Bar } from "./parts.js";
import { html, signal } from "./vendor/preact.mjs";

export const OWN_KEY = { path: "v1/key" };
const own = signal(null);

export async function loadOwnKey() {
  try {
    own.value = await ask(OWN_KEY);
  } catch (refused) {
    // What is wrong with it the other sections say.
    if (!(refused instanceof Refused)) throw refused;
    own.value = null;
  }
}

function Limit({ limit }) {
  const { rate, remaining, reset_s: reset } = limit;
  return html`<dt>rate limit</dt>
    <dd>${rate}: ${remaining} of ${limit.limit} left${remaining < limit.limit && `, more in ${reset} s`} <${Bar} share=${remaining / limit.limit} /></dd>`;
}

export function OwnKey() {
  const found = own.value;
  // Without keys and limits there is nothing to tell that the requests above do not.
  if (!found || (found.name === null && !found.rate_limit)) return null;
  const services = Object.entries(found.usage).sort();
  return html`<h2>This page's key</h2>
    <dl class="answer own-key">
      ${found.name !== null && html`<dt>name</dt><dd>${found.name}</dd>
        <dt>tenant</dt><dd>${found.tenant}</dd>
        <dt>scopes</dt><dd>${found.scopes.map((scope) => html`<span class="tag">${scope}</span> `)}</dd>`}
      ${found.rate_limit && html`<${Limit} limit=${found.rate_limit} />`}
      <dt>requests</dt>
      <dd>${services.map(([name, { requests, errors }]) => html`<div>${name}: ${requests}${errors > 0 && html`, <span class="wrong">${errors} refused or failed</span>`}</div>`)}</dd>
    </dl>`;
}
