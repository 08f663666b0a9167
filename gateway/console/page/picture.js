// A picture that the visitor chooses, pastes or drops, or takes from the examples.
import { useDrop } from "./parts.js";
import { html, useEffect } from "./vendor/preact.mjs";

// A view's own picture is kept in this browser, so that a reload does not lose it.
const STORE = "pictures";

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("fovea.console", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

async function use(mode, work) {
  const database = await opened();
  return new Promise((resolve, reject) => {
    const request = work(database.transaction(STORE, mode).objectStore(STORE));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

// Browsers that store nothing, as in a private window, keep the picture until the next reload only.
const keepPicture = (view, { name, blob }) => use("readwrite", (store) => store.put({ name, blob }, view)).catch(() => {});
const keptPicture = (view) => use("readonly", (store) => store.get(view)).catch(() => undefined);

// {name, blob, url}; of an example also `source`, its address.
export const noPicture = { name: "", blob: null, url: "" };

export async function example(name) {
  const source = `console/examples/${name}`;
  const response = await fetch(source);
  if (!response.ok) return noPicture;
  const blob = await response.blob();
  return { name, blob, url: URL.createObjectURL(blob), source };
}

const ofBlob = (blob, name) => ({ name, blob, url: URL.createObjectURL(blob) });

// The one that a view was left with.
export async function ownPicture(view) {
  const kept = await keptPicture(view);
  return kept ? ofBlob(kept.blob, kept.name) : noPicture;
}

const firstImage = (files) => [...(files ?? [])].find((file) => file.type.startsWith("image/"));

export function PictureInput({ view, picture, onPicture, examples, label, children }) {
  const take = (file) => {
    if (!file) return;
    const own = ofBlob(file, file.name || "pasted.png");
    keepPicture(view, own);
    onPicture(own);
  };
  const drop = useDrop("picture", (dropped) => take(firstImage(dropped.files)));
  useEffect(() => {
    const paste = (event) => {
      take(firstImage(event.clipboardData?.files));
    };
    document.addEventListener("paste", paste);
    return () => document.removeEventListener("paste", paste);
  }, [onPicture]);
  return html`<div class="picture-input">
    <div ...${drop}>
      ${picture.url ? html`<img src=${picture.url} alt=${picture.name} />` : html`<p>Drop or paste a picture here.</p>`}
      ${children}
    </div>
    <div class="choices">
      <label class="button">${label}<input
        type="file" accept="image/*" class="unseen"
        onChange=${(event) => {
          take(firstImage(event.target.files));
          event.target.value = "";
        }}
      /></label>
      ${examples.map((name) => html`<button
        class="thumb" aria-label=${`Example ${name}`} aria-pressed=${Boolean(picture.source?.endsWith(name))}
        onClick=${async () => onPicture(await example(name))}
      ><img src=${`console/examples/${name}`} alt="" /></button>`)}
    </div>
    <p class="hint">Or drop or paste one.</p>
  </div>`;
}
