// The vectors themselves: of an image under each condition, or of a text, on request.
import { ask } from "./api.js";
import { Copy, Problem } from "./parts.js";
import { createTask } from "./task.js";
import { html, useEffect, useState } from "./vendor/preact.mjs";

const SHOWN = 6;

// `input` has `images` or `texts` as /embed takes them, or a `form` with a file.
function embedCall({ form, ...input }, condition, model) {
  const options = { ...(condition && { condition }), ...(model && { model }) };
  const body = form ? { form: [...form, ...Object.entries(options)] } : { json: { ...input, ...options } };
  return { method: "POST", path: "embed", ...body };
}

function Vector({ condition, embedding }) {
  const [copied, setCopied] = useState("");
  const copy = () => navigator.clipboard.writeText(JSON.stringify(embedding)).then(() => setCopied("Copied."), () => setCopied("Not allowed here."));
  return html`<li>
    <b>${condition ?? "no condition"}</b> <span class="hint">${embedding.length} numbers, norm ${Math.hypot(...embedding).toFixed(3)}</span>
    <code>${embedding.slice(0, SHOWN).map((one) => one.toFixed(4)).join(", ")}, …</code>
    <button class="plain" onClick=${copy}>Copy as JSON</button> <span role="status" class="hint">${copied}</span>
  </li>`;
}

// Of `input`, asked for when it is opened, and anew when `of` tells another one.
export function Vectors({ of, input, conditions, model }) {
  const [task] = useState(createTask);
  const [isOpen, setOpen] = useState(false);
  const [found, setFound] = useState([]);
  useEffect(() => {
    setFound([]);
    if (!isOpen) return undefined;
    task.run("Embedding …", async (stop) => {
      task.calls.value = conditions.map((one) => embedCall(input, one, model));
      const answers = await Promise.all(task.calls.value.map((call) => ask(call, stop)));
      setFound(answers.flatMap((one) => one.data));
    });
    return task.stop;
  }, [isOpen, of, conditions.join("\n"), model]);
  return html`<details class="more" onToggle=${(event) => setOpen(event.target.open)}><summary>The vector itself</summary>
    <p role="status" class="hint">${task.busy.value}</p>
    <${Problem} kind="quiet" text=${task.problem.value} />
    <ul class="vectors">${found.map((one) => html`<${Vector} ...${one} />`)}</ul>
    ${found.length > 0 && html`<${Copy} calls=${task.calls.value} />`}
  </details>`;
}
