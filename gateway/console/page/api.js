// Requests to the gateway that sent the page. Addresses are relative, so that a proxy may serve it under a prefix.
import { signal } from "./vendor/preact.mjs";

// In memory only: a reload forgets it.
export const key = signal("");
export const isKeyWanted = signal(false);
export const models = signal([]);
export const modelsProblem = signal("");
// Whether a key is missing: without one, nothing is asked again unasked.
export let isBarred = false;

export class Refused extends Error {
  constructor(message, status, body = null) {
    super(message);
    this.status = status;
    this.code = body?.error?.code ?? "";
    this.param = body?.error?.param ?? "";
  }
}

// A call is {method, path, query, json} or {method, path, query, form}, a list of [name, text or {blob, name}].
async function send(call, stop) {
  const query = new URLSearchParams(call.query ?? []).toString();
  const headers = key.peek() ? { Authorization: `Bearer ${key.peek()}` } : {};
  let body;
  if (call.json !== undefined) {
    headers["Content-Type"] = "application/json";
    body = JSON.stringify(call.json);
  } else if (call.form !== undefined) {
    body = new FormData();
    for (const [name, value] of call.form) {
      if (typeof value === "string") body.append(name, value);
      else body.append(name, value.blob, value.name);
    }
  }
  let response;
  try {
    response = await fetch(query ? `${call.path}?${query}` : call.path, {
      method: call.method ?? "GET", headers, body, signal: stop, cache: "no-cache",
    });
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new Refused(`The gateway at ${location.host} can't be reached.`, 0);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const body = await response.json().catch(() => null);
  // A review may want its own token instead.
  if (body?.error?.code === "invalid_api_key") isKeyWanted.value = true;
  return new Refused(body?.error?.message ?? `The gateway answered with status ${response.status}.`, response.status, body);
}

export async function ask(call, stop) {
  const response = await send(call, stop);
  return response.status === 204 ? null : finished(response.json());
}

export async function askText(call, stop) {
  return finished((await send(call, stop)).text());
}

export async function askBlob(call, stop) {
  return finished((await send(call, stop)).blob());
}

async function finished(reading) {
  try {
    return await reading;
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new Refused("The answer broke off.", 0);
  }
}

// Server-sent events, each passed on as it arrives. An error may be the last of them.
export async function askStream(call, stop, onEvent) {
  const response = await send(call, stop);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await finished(reader.read());
    if (done) throw new Refused("The answer broke off.", 0);
    text += value;
    const events = text.split(/\r?\n\r?\n/);
    text = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ")) continue;
      if (event === "data: [DONE]") return;
      const data = JSON.parse(event.slice(6));
      if (data.error) throw new Refused(data.error.message, response.status, data);
      onEvent(data);
    }
  }
}

export async function loadModels() {
  try {
    models.value = (await ask({ path: "v1/models" })).data;
    modelsProblem.value = "";
    isKeyWanted.value = isBarred = false;
  } catch (refused) {
    if (!(refused instanceof Refused)) throw refused;
    modelsProblem.value = refused.message;
    isBarred = [401, 403].includes(refused.status);
  }
}

// What the gateway says of its services without a key: which are ready, and whether there is a review.
export const health = signal(null);
export const healthProblem = signal("");

export const hasReview = () => Boolean(health.value?.checks.review?.ok);

export async function loadHealth() {
  try {
    health.value = await ask({ path: "readyz" });
    healthProblem.value = "";
  } catch (refused) {
    if (!(refused instanceof Refused)) throw refused;
    healthProblem.value = refused.message;
  }
}

// Several requests, each of which may be refused without the others: [{value}, {problem, code}].
export function each(calls) {
  return Promise.all(
    calls.map((call) =>
      call.then((value) => ({ value }), (refused) => {
        if (!(refused instanceof Refused)) throw refused;
        return { problem: refused.message, code: refused.code };
      }),
    ),
  );
}
