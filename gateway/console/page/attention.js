// Calls of /generate, and the shares of attention that its numbers mean.
import { models } from "./api.js";
import { isGenerating } from "./parts.js";

export function generateCall({ query, documents, model, reorder, bias, temperature, isCalibrated, isStream = true }) {
  const calibration = { enabled: isCalibrated };
  if (isCalibrated && bias) calibration.bias = bias;
  if (isCalibrated && temperature) calibration.temperature = Number(temperature);
  const json = { query, documents, calibration, max_tokens: 64, stream: isStream };
  if (model) json.model = model;
  if (reorder !== "none") json.reorder = reorder;
  if (isStream) json.explain = true;
  return { method: "POST", path: "generate", json };
}

// The same as a chat, which tells the probability of each token of its answer.
export function tokensCall(call) {
  const { query, stream, explain, ...rest } = call.json;
  return { method: "POST", path: "v1/chat/completions", json: { messages: [{ role: "user", content: query }], ...rest, logprobs: true } };
}

export function profileOf(name) {
  const served = models.value.filter(isGenerating);
  return (served.find((model) => model.id === name) ?? served[0])?.calibration ?? null;
}

export function sharesOf(numbers) {
  const total = numbers.reduce((sum, one) => sum + one, 0);
  return numbers.map((one) => (total > 0 ? one / total : 0));
}

// Attn(k) as a share of all documents'.
export const sharesBefore = (reports) => sharesOf(reports.map(({ attention }) => attention));

// α = softmax(rel / t), to which each document's mean attention becomes proportional; null where nothing was calibrated.
export function sharesAfter(reports, temperature) {
  if (!temperature || reports.some(({ relevance }) => relevance === null)) return null;
  const highest = Math.max(...reports.map(({ relevance }) => relevance));
  return sharesOf(reports.map(({ relevance }) => Math.exp((relevance - highest) / temperature)));
}

const plain = (text) => text.toLowerCase().replaceAll(/\s+/g, " ");
export const isRight = (answer, expected) => expected.trim() !== "" && plain(answer).includes(plain(expected.trim()));
