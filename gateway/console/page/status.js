// Status: whether each service is ready, what it serves, and what the gateway measures, read anew every few seconds.
import { Refused, askText, health, healthProblem, loadHealth, loadModels } from "./api.js";
import { parse, quantile, sum, valuesOf } from "./metrics.js";
import { Models, loadVersions, versionCalls } from "./model_cards.js";
import { OWN_KEY, OwnKey, loadOwnKey } from "./own_key.js";
import { Copy, Head, Problem, heads } from "./parts.js";
import { html, signal, useEffect } from "./vendor/preact.mjs";

const PERIOD_MS = 3000;
// What changes seldom, or counts for the key's limit, is read less often.
const READINGS_A_SLOW_ONE = 5;
const CALLS = [{ path: "readyz" }, { path: "metrics" }, OWN_KEY, { path: "v1/models" }];

const readings = signal([]); // [{at, samples}], at most the last two
const metricsProblem = signal("");

async function readMetrics() {
  try {
    const samples = parse(await askText({ path: "metrics" }));
    readings.value = [...readings.value.slice(-1), { at: performance.now(), samples }];
    metricsProblem.value = "";
  } catch (refused) {
    if (!(refused instanceof Refused)) throw refused;
    metricsProblem.value = refused.message;
  }
}

async function refresh(number) {
  const before = JSON.stringify(health.value);
  await loadHealth();
  const isChanged = !healthProblem.value && JSON.stringify(health.value) !== before;
  await readMetrics();
  if (!isChanged && number % READINGS_A_SLOW_ONE) return;
  await loadModels();
  await Promise.all([loadOwnKey(), loadVersions()]);
}

function rate(name, matches) {
  if (readings.value.length < 2) return null;
  const [before, after] = readings.value;
  return ((sum(after.samples, name, matches) - sum(before.samples, name, matches)) * 1000) / (after.at - before.at);
}

const perSecond = (value) => (value === null ? "…" : Math.max(0, value).toFixed(1));
const within = (seconds) => (seconds === null ? "" : seconds === Infinity ? "more" : `≤ ${seconds < 1 ? `${seconds * 1000} ms` : `${seconds} s`}`);

function Services() {
  const now = readings.value.at(-1)?.samples ?? [];
  const services = valuesOf(now, "fovea_gateway_inflight_requests", "service");
  const checks = health.value?.checks ?? {};
  const known = Object.keys(checks).filter((name) => services.includes(name) || checks[name].detail.includes("address"));
  const names = (health.value ? known : services).sort();
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Services"><table>
    ${heads(["Service", "State"], ["In flight", "Waiting", "Limit"])}
    <tbody>${names.map((name) => {
      const check = checks[name];
      const gauge = (metric) => (services.includes(name) ? sum(now, `fovea_gateway_${metric}`, { service: name }) : "");
      return html`<tr>
        <th scope="row">${name}</th>
        <td>${check && html`<span class=${check.ok ? "right" : "wrong"}>${check.ok ? "● ready" : "○ not ready"}</span> <span class="hint">${check.detail}</span>`}</td>
        <td class="number">${gauge("inflight_requests")}</td><td class="number">${gauge("queued_requests")}</td><td class="number">${gauge("concurrency_limit")}</td>
      </tr>`;
    })}</tbody>
  </table></div>`;
}

function Routes() {
  const now = readings.value.at(-1)?.samples ?? [];
  const own = (route) => !route || route.startsWith("/console") || ["/metrics", "/readyz"].includes(route);
  const routes = valuesOf(now, "fovea_requests_total", "route").filter((route) => !own(route)).sort();
  if (routes.length === 0) return html`<p class="hint">${readings.value.length ? "No request yet." : "…"}</p>`;
  const refusals = (route) => now.filter((one) => one.name === "fovea_requests_total" && one.labels.route === route && Number(one.labels.code) >= 400)
    .reduce((total, one) => total + one.value, 0);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Requests"><table>
    ${heads(["Route"], ["Requests", "a second", "Refused or failed", "Half within", "95 % within"])}
    <tbody>${routes.map((route) => html`<tr>
      <th scope="row"><code>${route.replaceAll(/\{(\w+?)(_id)?(:\w+)?\}/g, "{$1}")}</code></th>
      <td class="number">${sum(now, "fovea_requests_total", { route })}</td>
      <td class="number">${perSecond(rate("fovea_requests_total", { route }))}</td>
      <td class="number">${refusals(route)}</td>
      <td class="number">${within(quantile(now, "fovea_request_seconds", { route }, 0.5))}</td>
      <td class="number">${within(quantile(now, "fovea_request_seconds", { route }, 0.95))}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

export function Status() {
  useEffect(() => {
    let timer;
    let isOver = false;
    // The next reading begins only after the last one has ended, and none while nobody looks.
    let number = 0;
    const next = async () => {
      if (!document.hidden) await refresh(number++);
      if (!isOver) timer = setTimeout(next, PERIOD_MS);
    };
    // What another key may see is read with the next reading.
    const renew = () => (number = 0);
    readings.value = [];
    next();
    window.addEventListener("key-changed", renew);
    return () => {
      isOver = true;
      clearTimeout(timer);
      window.removeEventListener("key-changed", renew);
    };
  }, []);
  return html`<${Head} title="Status" about="What is served, whether it is ready, and what the gateway measures. Read anew every few seconds." />
    <h2>Services</h2>
    <${Problem} kind="quiet" text=${healthProblem.value} />
    <${Services} />
    <h2>Requests since the gateway started</h2>
    <${Problem} kind="quiet" text=${metricsProblem.value === healthProblem.value ? "" : metricsProblem.value} />
    <${Routes} />
    <${OwnKey} />
    <h2>Models</h2>
    <${Models} />
    <${Copy} calls=${[...CALLS, ...versionCalls()]} />`;
}
