// Requests to the review. Their addresses are relative, so that a proxy may serve it under a prefix.

export class Refused extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// A call is {method, path, query, json}.
async function ask({ method, path, query, json }) {
  const options = json && { headers: { "Content-Type": "application/json" }, body: JSON.stringify(json) };
  let response;
  try {
    response = await fetch(query ? `${path}?${new URLSearchParams(query)}` : path, { method, ...options });
  } catch {
    throw new Refused("The server can't be reached.", 0);
  }
  const body = response.status === 204 ? null : await response.json().catch(() => null);
  if (!response.ok) {
    const message = body?.error?.message ?? `The server answered with status ${response.status}.`;
    throw new Refused(message, response.status, body?.error?.code);
  }
  return body;
}

// How the page that the review is on reaches it: what answers a call, and the address of what only a request with a key
// would get. By default this is a page of the review's own server.
export const own = { ask, addressOf: async (path) => path };

export class Api {
  constructor(server) {
    this.ask = server.ask;
    this.addressOf = server.addressOf;
  }

  openSession = (token) => this.post("session", { token });
  about = () => this.ask({ path: "review/about" });
  summary = () => this.ask({ path: "review/summary" });
  judge = (verdict) => this.post("verdicts", verdict);
  undo = (reviewer, round) => this.post("undo", { reviewer, round });
  exported = () => this.addressOf("review/verdicts.jsonl");
  image = (filename) => this.addressOf(`review/images/${filename.split("/").map(encodeURIComponent).join("/")}`);

  post(name, json) {
    return this.ask({ method: "POST", path: `review/${name}`, json });
  }

  turn(reviewer, { after, secondRound } = {}) {
    const query = [["reviewer", reviewer]];
    if (after) query.push(["after", after]);
    if (secondRound) query.push(["second_round", "true"]);
    return this.ask({ path: "review/turn", query });
  }
}
