// Choices that outlast a visit. The name is also in the address, so that each reviewer can be sent a link.

const NAME = "fovea-review.reviewer";
const KEYS = "fovea-review.keys";

// Browsers that keep nothing for the page refuse even to be asked.
function stored(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null;
  }
}

function store(key, value) {
  try {
    localStorage.setItem(key, value);
  } catch {
    // The address still has the name.
  }
}

export const knownReviewer = () => new URLSearchParams(location.search).get("reviewer") || stored(NAME) || "";

export function rememberReviewer(name) {
  store(NAME, name);
  history.replaceState(null, "", `?${new URLSearchParams({ reviewer: name })}`);
}

export const keysAreOn = () => stored(KEYS) !== "off";
export const rememberKeys = (areOn) => store(KEYS, areOn ? "on" : "off");

// The token of `#token=…`, which is taken out of the address: it stands in no history and is sent to no server as
// part of one.
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) history.replaceState(null, "", location.pathname + location.search);
  return token;
}
