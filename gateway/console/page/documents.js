// A list of documents that are typed, pasted, and moved by dragging or by keys.
import { html, useEffect, useRef, useState } from "./vendor/preact.mjs";

// A document is a text, or {title, text}, as the API takes them.
export const textOf = (one) => one.text ?? one;
export const titleOf = (one) => one.title ?? "";
const documentOf = (title, text) => (title ? { title, text } : text);
const isDocument = (one) => typeof one === "string" || (typeof one?.text === "string" && typeof one.title === "string");
export const isDocuments = (given) => Array.isArray(given) && given.every(isDocument);

const BLANK = /\n\s*\n/;
// From so many lines without a blank one, each is a document.
const FEWEST_LINES = 3;

// Paragraphs become documents of their own, and a line that begins with # the title of the text after it.
function paragraphs(given) {
  const found = [];
  let title = "";
  const text = given.replaceAll("\r", "").trim();
  const isList = !BLANK.test(text) && !/^\s*#+ /m.test(text) && text.split("\n").length >= FEWEST_LINES;
  for (const paragraph of text.split(isList ? "\n" : BLANK)) {
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

// `beside(i)` is what a document shows at its side; `onChange(documents, whereOld)` tells where each one came from; Ctrl+Enter is `onRun`.
export function Documents({ documents, onChange, onRun, beside }) {
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
  const clear = () => {
    if (!window.confirm(`Remove all ${documents.length} documents?`)) return;
    focusAfter.current = [0, "textarea"];
    setTitled(false);
    change([""]);
  };
  const keys = (event, i) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      onRun();
    }
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
          ${[["up", "↑", i - 1], ["down", "↓", i + 1]].map(([name, arrow, to]) => html`<button
            class=${`plain ${name}`} aria-label=${`Move document ${i + 1} ${name}`} aria-disabled=${!(to in documents)} onClick=${() => move(i, to, `.${name}`)}
          >${arrow}</button>`)}
          <button class="plain remove" aria-label=${`Remove document ${i + 1}`} onClick=${() => remove(i)}>✕</button>
        </span>
        ${beside?.(i)}
      </li>`)}
    </ol>
    <div class="actions">
      <button class="small" onClick=${() => {
        focusAfter.current = [documents.length, "textarea"];
        change([...indices, ""]);
      }}>Add a document</button>
      ${!hasTitles && html`<button class="small" onClick=${() => {
        focusAfter.current = [0, ".title"];
        setTitled(true);
      }}>Add titles</button>`}
      ${documents.length > 1 && html`<button class="small" onClick=${clear}>Clear all</button>`}
      <span class="hint">Drag ⠿, or press Alt and an arrow, to move one. Pasted paragraphs, or three lines and more, become documents of their own; a line that begins with # is a title.</span>
    </div>`;
}
