// One colour a version, the same everywhere on the page, always beside the version's name.
import { el } from "./dom.js";

const TONES = 8;
let order = [];

/** Names in the order they were made; others come behind them as they are met. */
export function rememberVersions(names) {
  order = [...new Set([...names, ...order.filter((name) => !names.includes(name))])];
}

export function tone(name) {
  if (!order.includes(name)) order.push(name);
  return `tone-${order.indexOf(name) % TONES}`;
}

export const badge = (name) => el("span", { class: `badge ${tone(name)}` }, name);
