// Collections: their list, what is added, and how far their indexes are.
import { Refused, ask } from "./api.js";
import { signal } from "./vendor/preact.mjs";

const BATCH_FILES = 16;
const BATCH_BYTES = 8 * 2 ** 20;
const POLL_MS = 500;

export const collections = signal(null);
export const progress = signal(null); // {done, total, what} while images are added
export const added = signal(null); // {name: the collection's, ids, refused: [{name, message}]} of what was added last

export const EXAMPLES = "console-examples";

export async function loadCollections(stop) {
  collections.value = (await ask({ path: "collections" }, stop)).data;
}

export const pathOf = (name) => `collections/${encodeURIComponent(name)}`;
export const imagePath = (name, id) => `${pathOf(name)}/images/${id.split("/").map(encodeURIComponent).join("/")}`;

// The API's filter, of JSON or `color=red, seen=3`.
export function filterOf(text) {
  try {
    if (/^\s*{/.test(text)) return JSON.parse(text);
  } catch {
    throw new Refused("The filter is not valid JSON.");
  }
  const pairs = text.split(",").map((pair) => pair.split("=").map((part) => part.trim())).filter(([name]) => name);
  const value = (given) => (/^(-?\d+(\.\d+)?|true|false|null)$/.test(given ?? "") ? JSON.parse(given) : given ?? null);
  return Object.fromEntries(pairs.map(([name, given]) => [name, value(given)]));
}

// A collection that is there keeps its model.
export function makeCall(name, conditions, model) {
  const json = { conditions: conditions.filter(Boolean) };
  if (model && !collections.peek()?.some((one) => one.name === name)) json.model = model;
  return { method: "PUT", path: pathOf(name), json };
}

export function addCall(name, files, metadata = {}) {
  const form = files.map((file) => ["file", { blob: file.blob, name: file.name, source: file.source }]);
  const told = Object.fromEntries(files.filter((file) => metadata[file.name]).map((file) => [file.name, metadata[file.name]]));
  if (Object.keys(told).length > 0) form.push(["metadata", JSON.stringify(told)]);
  return { method: "POST", path: `${pathOf(name)}/images`, form };
}

function batches(files) {
  const found = [];
  let bytes = 0;
  for (const file of files) {
    const last = found.at(-1);
    if (!last || last.length === BATCH_FILES || bytes + file.blob.size > BATCH_BYTES) {
      found.push([file]);
      bytes = file.blob.size;
    } else {
      last.push(file);
      bytes += file.blob.size;
    }
  }
  return found;
}

// A request adds all of its images or none, so those of one that is refused are sent one by one.
export async function addFiles(name, files, metadata, stop) {
  progress.value = { what: "Stored", done: 0, total: files.length };
  const told = (batch, refused = []) => {
    const { ids, refused: before } = added.value;
    added.value = { name, ids: [...ids, ...batch.map((file) => file.name)], refused: [...before, ...refused] };
  };
  const isAboutImages = (failure) => failure instanceof Refused && failure.status >= 400 && failure.status < 500 && ![401, 403, 404, 429].includes(failure.status);
  for (const batch of batches(files)) {
    try {
      await ask(addCall(name, batch, metadata), stop);
      told(batch);
    } catch (failure) {
      if (!isAboutImages(failure)) throw failure;
      for (const file of batch) {
        try {
          await ask(addCall(name, [file], metadata), stop);
          told([file]);
        } catch (one) {
          if (!isAboutImages(one)) throw one;
          told([], [{ name: file.name, message: one.message }]);
        }
      }
    }
    progress.value = { ...progress.value, done: progress.value.done + batch.length };
  }
  await indexed(name, stop);
}

// Waits until every index holds every image, and tells how far it is.
async function indexed(name, stop) {
  for (;;) {
    const found = await ask({ path: pathOf(name) }, stop);
    const waiting = Math.max(0, ...found.conditions.map((one) => one.waiting));
    progress.value = { what: "Indexed", done: found.size - waiting, total: found.size };
    if (found.state === "ready") return;
    await new Promise((resolve) => setTimeout(resolve, POLL_MS));
    stop.throwIfAborted();
  }
}

export async function exampleFiles() {
  const metadata = await (await fetch("console/examples/gallery.json")).json();
  const files = await Promise.all(Object.keys(metadata).map(async (name) => {
    const source = `console/examples/${name}`;
    return { name, source, blob: await (await fetch(source)).blob() };
  }));
  return { files, metadata };
}

// The files in what was dropped, folders included, with their paths as names.
export async function droppedFiles(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  const found = await Promise.all(entries.map(filesOf));
  return found.flat();
}

async function filesOf(entry) {
  if (entry.isFile) {
    const blob = await new Promise((resolve, reject) => entry.file(resolve, reject));
    return [{ name: entry.fullPath.replace(/^\//, ""), blob }];
  }
  const reader = entry.createReader();
  const inside = [];
  for (;;) {
    // A reader gives a part of a folder at a time.
    const part = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (part.length === 0) break;
    inside.push(...part);
  }
  return (await Promise.all(inside.map(filesOf))).flat();
}

export const chosenFiles = (list) => [...list].map((blob) => ({ name: blob.webkitRelativePath || blob.name, blob }));

export const isImage = ({ blob }) => blob.type.startsWith("image/");
