// A list of documents that are typed, pasted, and moved by dragging or by keys.
import { html, useEffect, useRef, useState } from "./vendor/preact.mjs";

// A document is a text, or {title, text}, as the API takes them.
export const textOf = (one) => one.text ?? one;
export const titleOf = (one) => one.title ?? "";
const documentOf = (title, text) => (title ? { title, text } : text);
const isDocument = (one) => typeof one === "string" || (typeof one?.text === "string" && typeof one.title === "string");
export const isDocuments = (given) => Array.isArray(given) && given.every(isDocument);

// Paragraphs become documents of their own, and a line that begins with # the title of the text after it.
function paragraphs(text) {
  const found = [];
  let title = "";
  for (const paragraph of text.replaceAll("\r", "").split(/\n\s*\n/)) {
    const [, heading, rest] = /^\s*#+ +(.+)\n?([^]*)$/.exec(paragraph) ?? ["", title, paragraph];
    const body = rest.replaceAll(/\s+/g, " ").trim();
    if (body) found.push(documentOf(heading.trim(), body));
    title = body ? "" : heading;
  }
  return found;
}

export function moved(list, from, to) {
  const rest = list.filter((_, i) => i !== from);
  rest.splice(to, 0, list[from]);
  return rest;
}

// `beside(i)` is what a document shows at its side; `onChange(documents, whereOld)` tells where each one came from.
export function Documents({ documents, onChange, beside }) {
  const list = useRef(null);
  const [isTitled, setTitled] = useState(false);
  const hasTitles = isTitled || documents.some(titleOf);
  const dragged = useRef(-1);
  const focusAfter = useRef(null);
  useEffect(() => {
    if (!focusAfter.current) return;
    const [row, name] = focusAfter.current;
    focusAfter.current = null;
    list.current.children[row]?.querySelector(name)?.focus();
  });
  const change = (order) => onChange(order.map((i) => (typeof i === "number" ? documents[i] : i)), order);
  const indices = documents.map((_, i) => i);
  const move = (from, to, name) => {
    if (to < 0 || to >= documents.length) return;
    focusAfter.current = name ? [to, name] : null;
    change(moved(indices, from, to));
  };
  const edit = (i, title, text) => onChange(documents.with(i, documentOf(title, text)), indices);
  const remove = (i) => {
    focusAfter.current = [Math.min(i, documents.length - 2), ".remove"];
    change(indices.filter((j) => j !== i));
  };
  const paste = (event, i) => {
    const several = paragraphs(event.clipboardData.getData("text"));
    if (several.length < 2 && !several.some(titleOf)) return;
    event.preventDefault();
    const kept = textOf(documents[i]).trim() ? indices.slice(0, i + 1) : indices.slice(0, i);
    change([...kept, ...several, ...indices.slice(i + 1)]);
  };
  const keys = (event, i) => {
    if (!event.altKey || !["ArrowUp", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    move(i, event.key === "ArrowUp" ? i - 1 : i + 1, "textarea");
  };
  return html`<ol class="documents" ref=${list} aria-label="Documents">
      ${documents.map((one, i) => html`<li
        onDragOver=${(event) => dragged.current >= 0 && event.preventDefault()}
        onDrop=${(event) => {
          event.preventDefault();
          if (dragged.current >= 0) move(dragged.current, i);
          dragged.current = -1;
        }}
      >
        <span
          class="handle" draggable="true" title="Drag to another place" aria-hidden="true"
          onDragStart=${(event) => {
            dragged.current = i;
            event.dataTransfer.setDragImage(event.target.closest("li"), 10, 10);
            event.dataTransfer.effectAllowed = "move";
          }}
          onDragEnd=${() => (dragged.current = -1)}
        >⠿ ${i + 1}</span>
        <div>
          ${hasTitles && html`<input
            class="title" aria-label=${`Title of document ${i + 1}`} placeholder="Title" value=${titleOf(one)} spellcheck=${false}
            onInput=${(event) => edit(i, event.target.value, textOf(one))}
          />`}
          <textarea
            rows="1" aria-label=${`Document ${i + 1}`} value=${textOf(one)} spellcheck=${false}
            onInput=${(event) => edit(i, titleOf(one), event.target.value)} onPaste=${(event) => paste(event, i)} onKeyDown=${(event) => keys(event, i)}
          ></textarea>
        </div>
        <span class="moves">
          <button type="button" class="plain up" aria-label=${`Move document ${i + 1} up`} aria-disabled=${i === 0 ? "true" : undefined} onClick=${() => move(i, i - 1, ".up")}>↑</button>
          <button type="button" class="plain down" aria-label=${`Move document ${i + 1} down`} aria-disabled=${i === documents.length - 1 ? "true" : undefined} onClick=${() => move(i, i + 1, ".down")}>↓</button>
          <button type="button" class="plain remove" aria-label=${`Remove document ${i + 1}`} onClick=${() => remove(i)}>✕</button>
        </span>
        ${beside?.(i)}
      </li>`)}
    </ol>
    <div class="actions">
      <button type="button" class="small" onClick=${() => {
        focusAfter.current = [documents.length, "textarea"];
        change([...indices, ""]);
      }}>Add a document</button>
      ${!hasTitles && html`<button type="button" class="small" onClick=${() => {
        focusAfter.current = [0, ".title"];
        setTitled(true);
      }}>Add titles</button>`}
      <span class="hint">Drag ⠿, or press Alt and an arrow, to move one. Pasted paragraphs become documents of their own; a line that begins with # is a title.</span>
    </div>`;
}
