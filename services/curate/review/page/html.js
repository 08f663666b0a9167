// Markup in template strings, without a build step.
import htm from "./vendor/htm.mjs";
import { Component, createRef, h, render } from "./vendor/preact.mjs";

export const html = htm.bind(h);
export { Component, createRef, render };
