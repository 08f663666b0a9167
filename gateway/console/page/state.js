// What the views keep: in the address, so that a link shows the same, and in the browser, so that a reload loses nothing.
import { effect, signal } from "./vendor/preact.mjs";

const PREFIX = "fovea.console.";
// Longer texts stay out of the address; drafts hold them.
const MAX_ADDRESS = 6000;

// Browsers refuse an address that changes with every key.
const ADDRESS_PAUSE_MS = 300;

// What a page was left by the last time is told apart from a link to the same address.
const isReload = performance.getEntriesByType("navigation")[0]?.type === "reload";

const kept = new Map();
const current = new Map();
let pause;
let addressBefore = location.hash;
export const VIEWS = ["score", "ask", "search", "rerank", "predict", "review", "status"];
export const view = signal(viewIn(location.hash));

function viewIn(hash) {
  const name = hash.replace(/^#/, "").split("?")[0];
  return VIEWS.includes(name) ? name : VIEWS[0];
}

function fieldsIn(hash) {
  const fields = {};
  for (const [name, text] of new URLSearchParams(hash.split("?").slice(1).join("?"))) {
    try {
      fields[name] = JSON.parse(text);
    } catch {
      fields[name] = text;
    }
  }
  return fields;
}

// {fields, at: the address that the page had then, before: the one before that}.
function stored(name) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name)) ?? {};
  } catch {
    return {};
  }
}

function store(name, fields) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify({ fields, at: location.hash, before: addressBefore }));
  } catch {
    // A browser that stores nothing still shows everything.
  }
}

// Whether a value from an address has the form of a view's own.
function isLike(value, model) {
  if (Array.isArray(model)) return Array.isArray(value) && value.every((item) => isLike(item, model[0] ?? ""));
  if (model === null || typeof model !== "object") return typeof value === typeof model;
  if (value === null || typeof value !== "object") return false;
  return Object.keys(model).every((key) => isLike(value[key], model[key]));
}

const isDefault = (value, model) => JSON.stringify(value) === JSON.stringify(model);

function writeAddress() {
  clearTimeout(pause);
  const name = view.peek();
  const fields = current.get(name)?.();
  if (!fields) return;
  const wanted = address(name, fields.values, fields.defaults);
  if (location.hash !== wanted) {
    addressBefore = location.hash;
    history.replaceState(null, "", wanted);
  }
  store(name, fields.values);
}

function address(name, fields, defaults) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(fields)) {
    if (isDefault(value, defaults[key])) continue;
    const isPlain = typeof value === "string" && !isReadAsJson(value);
    query.set(key, isPlain ? value : JSON.stringify(value));
  }
  const text = query.toString();
  return text && text.length < MAX_ADDRESS ? `#${name}?${text}` : `#${name}`;
}

function isReadAsJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

// A view's fields as signals. `checks` are functions of fields whose form their defaults don't tell. An address that has fields wins over the draft, and what it leaves out is as by default;
// but a draft of the very page at this address is newer, as the address follows it with a pause.
export function remembered(name, defaults, checks = {}) {
  const signals = Object.fromEntries(Object.entries(defaults).map(([key, value]) => [key, signal(value)]));
  const fill = (given) => {
    for (const [key, model] of Object.entries(defaults)) {
      const isFit = checks[key] ?? ((value) => isLike(value, model));
      signals[key].value = isFit(given[key]) ? given[key] : model;
    }
  };
  const draft = stored(name);
  const isOwn = draft.at === location.hash || (isReload && draft.before === location.hash);
  const isLink = view.peek() === name && location.hash.includes("?") && !isOwn;
  fill(isLink ? fieldsIn(location.hash) : (draft.fields ?? {}));
  kept.set(name, fill);
  const values = () => Object.fromEntries(Object.entries(signals).map(([key, one]) => [key, one.value]));
  current.set(name, () => ({ values: values(), defaults }));
  effect(() => {
    store(name, values());
    if (view.value !== name) return;
    clearTimeout(pause);
    pause = setTimeout(writeAddress, ADDRESS_PAUSE_MS);
  });
  return signals;
}

// A reload comes back to the address that it began with: the draft must stay the newer of the two.
window.addEventListener("beforeunload", () => clearTimeout(pause));
window.addEventListener("hashchange", () => {
  const name = viewIn(location.hash);
  if (location.hash.includes("?")) kept.get(name)?.(fieldsIn(location.hash));
  view.value = name;
});
