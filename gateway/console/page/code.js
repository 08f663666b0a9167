// Calls as commands: what the page has just asked, for a shell or for Python. The key is never among them.
import { isKeyWanted, key } from "./api.js";

const base = () => new URL(".", location.href).href.split("#")[0];
const needsKey = () => Boolean(key.peek() || isKeyWanted.peek());
const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

function address(call) {
  const query = new URLSearchParams(call.query ?? []).toString();
  return base() + (query ? `${call.path}?${query}` : call.path);
}

export function asCurl(calls) {
  const fetched = examples(calls).map(([name, source]) => `curl -s -o ${quoted(name)} ${quoted(base() + source)}`);
  return [...fetched, ...calls.map(curl)].join("\n");
}

function curl(call) {
  const parts = [`curl ${quoted(address(call))}`];
  const method = call.method ?? "GET";
  if (method !== "GET" && method !== "POST") parts.push(`-X ${method}`);
  if (needsKey()) parts.push(`-H "Authorization: Bearer $KEY"`);
  if (call.json?.stream) parts.push("-N");
  if (call.json !== undefined) {
    parts.push(`-H 'Content-Type: application/json'`, `-d ${quoted(JSON.stringify(call.json))}`);
  }
  for (const [name, value] of call.form ?? []) {
    const isText = typeof value === "string";
    parts.push(isText ? `--form-string ${quoted(`${name}=${value}`)}` : `-F ${quoted(`${name}=@${curlName(value.name)}`)}`);
  }
  return parts.join(" \\\n    ");
}

// In double quotes, as curl splits a bare name at commas and semicolons.
const curlName = (name) => `"${name.replaceAll("\\", "\\\\").replaceAll('"', '\\"')}"`;

// [name, address] of each example's picture among what was sent.
function examples(calls) {
  const files = calls.flatMap((call) => (call.form ?? []).map(([, value]) => value));
  return [...new Map(files.filter((file) => file.source).map((file) => [file.name, file.source]))];
}

export function asPython(calls) {
  const lines = needsKey() ? ["import os", "", "import requests", ""] : ["import requests", ""];
  if (needsKey()) lines.push(`headers = {"Authorization": f"Bearer {os.environ['KEY']}"}`);
  for (const [name, source] of examples(calls)) {
    lines.push(`with open(${python(name)}, "wb") as file:`, `    file.write(requests.get(${python(base() + source)}).content)`);
  }
  return [...lines, ...calls.flatMap(pythonCall)].join("\n");
}

function pythonCall(call) {
  const parts = [python(base() + call.path)];
  if (call.query?.length) parts.push(`params=${python(call.query)}`);
  if (needsKey()) parts.push("headers=headers");
  if (call.json !== undefined) parts.push(`json=${python(call.json)}`);
  if (call.form !== undefined) {
    const form = call.form.map(([name, value]) => {
      const part = typeof value === "string" ? `(None, ${python(value)})` : `open(${python(value.name)}, "rb")`;
      return `        (${python(name)}, ${part}),`;
    });
    parts.push(`files=[\n${form.join("\n")}\n    ]`);
  }
  const isStream = Boolean(call.json?.stream);
  if (isStream) parts.push("stream=True");
  const asked = `response = requests.${(call.method ?? "GET").toLowerCase()}(\n    ${parts.join(",\n    ")},\n)`;
  const shown = isStream ? `for line in response.iter_lines(decode_unicode=True):\n    print(line)` : "print(response.json())";
  return [asked, shown];
}

function python(value) {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${python(one)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}
