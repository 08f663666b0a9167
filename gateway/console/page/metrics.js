// The gateway's metrics in Prometheus's text format, and what two readings of them tell.
export function parse(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const match = /^([a-z_A-Z]\w*)(?:\{(.*)\})? (\S+)/.exec(line);
    if (match) samples.push({ name: match[1], labels: labelsOf(match[2] ?? ""), value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return samples;
}

function labelsOf(text) {
  const labels = {};
  for (const [, name, value] of text.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
    labels[name] = value.replaceAll(/\\(.)/g, (_, escaped) => (escaped === "n" ? "\n" : escaped));
  }
  return labels;
}

export function sum(samples, name, matches = {}) {
  return samples
    .filter((one) => one.name === name && Object.entries(matches).every(([label, value]) => one.labels[label] === value))
    .reduce((total, one) => total + one.value, 0);
}

export const valuesOf = (samples, name, label) => [...new Set(samples.filter((one) => one.name === name).map((one) => one.labels[label]))];

// The bound of the bucket in which a share of the requests of a route ends; null without any.
export function quantile(samples, name, matches, share) {
  const bounds = new Map();
  for (const one of samples) {
    if (one.name !== `${name}_bucket` || !Object.entries(matches).every(([label, value]) => one.labels[label] === value)) continue;
    const bound = one.labels.le === "+Inf" ? Infinity : Number(one.labels.le);
    bounds.set(bound, (bounds.get(bound) ?? 0) + one.value);
  }
  const total = bounds.get(Infinity) ?? 0;
  if (total === 0) return null;
  return [...bounds.keys()].sort((a, b) => a - b).find((bound) => bounds.get(bound) >= share * total);
}
