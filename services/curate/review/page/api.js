// Requests to the server that sent the page. All of its addresses are relative, so that a proxy may serve it under a
// prefix.

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function call(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Refused("The server can't be reached.", 0);
  }
  const body = response.status === 204 ? null : await response.json().catch(() => null);
  if (!response.ok) {
    throw new Refused(body?.error?.message ?? `The server answered with status ${response.status}.`, response.status);
  }
  return body;
}

function post(path, body) {
  return call(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

export const openSession = (token) => post("session", { token });
export const reviewers = () => call("reviewers");
export const summary = () => call("summary");
export const judge = (verdict) => post("verdicts", verdict);
export const undo = (reviewer, round) => post("undo", { reviewer, round });

export function turn(reviewer, { after, secondRound } = {}) {
  const query = new URLSearchParams({ reviewer });
  if (after) query.set("after", after);
  if (secondRound) query.set("second_round", "true");
  return call(`turn?${query}`);
}

export function imageAddress(filename) {
  return `images/${filename.split("/").map(encodeURIComponent).join("/")}`;
}
