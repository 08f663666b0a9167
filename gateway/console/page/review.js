// Review: the page of `fovea curate review`, asking through the gateway with this page's key. In a shadow root it takes
// this page's colors, and otherwise neither's style reaches the other.
import { ask, askBlob, hasReview, health, key, loadHealth } from "./api.js";
import { Copy, Head, Problem } from "./parts.js";
import { remembered } from "./state.js";
import { effect, html, signal, useEffect, useRef } from "./vendor/preact.mjs";

const LOOK_MS = 3000;
const fields = remembered("review", { reviewer: "" });
const calls = signal([]);
const problem = signal("");

const server = {
  ask(call) {
    calls.value = [call];
    return ask(call);
  },
  // For images and downloads browsers send no key.
  addressOf: async (path) => (key.peek() ? URL.createObjectURL(await askBlob({ path })) : path),
};

async function styled(host) {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  const style = document.createElement("link");
  const loaded = new Promise((resolve) => (style.onload = style.onerror = resolve));
  Object.assign(style, { rel: "stylesheet", href: "review/page/review.css" });
  const body = document.createElement("div");
  root.replaceChildren(style, body);
  const [module] = await Promise.all([import("../review/page/review.js"), loaded]);
  return { body, mount: module.mount };
}

// Shows the review, anew for another link's reviewer or another key.
function show(host) {
  let shown, usedKey, isOver;
  let end = () => {};
  const ready = styled(host);
  const start = async () => {
    const { body, mount } = await ready.catch(() => ({}));
    problem.value = mount ? "" : "The review's page did not load. Reload once the review runs.";
    if (isOver || !mount) return;
    end();
    usedKey = key.peek();
    shown = fields.reviewer.peek();
    end = mount(body, { server, reviewer: shown, onReviewer: (name) => (fields.reviewer.value = shown = name) });
  };
  const follow = effect(() => {
    if (fields.reviewer.value !== shown) start();
  });
  // A typed token stays.
  const onKey = () => key.peek() !== usedKey && start();
  window.addEventListener("key-changed", onKey);
  return () => {
    isOver = true;
    follow();
    window.removeEventListener("key-changed", onKey);
    end();
  };
}

function Mounted() {
  const host = useRef(null);
  useEffect(() => show(host.current), []);
  return html`<div ref=${host}></div>`;
}

export function Review() {
  // A review that is gone keeps its pair and note here until the verdict is saved.
  const wasThere = useRef(false);
  wasThere.current ||= hasReview();
  useEffect(() => {
    const timer = setInterval(() => wasThere.current || document.hidden || loadHealth(), LOOK_MS);
    return () => clearInterval(timer);
  }, []);
  return html`<${Head} title="Review" about="People judge whether negative captions are false of their images, by keyboard." />
    <${Problem} kind="quiet" text=${problem.value} />
    ${wasThere.current && html`<${Mounted} /><${Copy} calls=${calls.value} />`}
    ${health.value && !wasThere.current && html`<p>No review is running that this gateway knows of. Start one, and it appears here:</p>
      <pre class="command"><code>fovea curate review pairs.jsonl --images images --database review.sqlite</code></pre>
      <p class="hint">The gateway of <code>fovea up</code> finds it; another needs its address in <code>FOVEA_GATEWAY_REVIEW_URL</code>.</p>`}`;
}
