// Elements from code. Text is always a text node: ids, labels and messages come from strangers.

const SVG = "http://www.w3.org/2000/svg";

/** An element with attributes and children; `on` holds listeners, `false` and `null` leave an attribute out. */
export function el(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for a part of a drawing. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, { on = {}, data = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  Object.assign(element.dataset, data);
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

export const byId = (id) => document.getElementById(id);

/** Whether the window is as narrow as a phone, where only the first things are unfolded. The same width as in page.css. */
export const isNarrow = () => window.matchMedia("(max-width: 44rem)").matches;

/** Opens what is folded around a place, so that it can be seen and have the focus. */
export function unfold(place) {
  for (let at = place.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
}

/** New content in a place; what had the focus there (by its `data-focus`) has it again. */
export function renew(place, ...children) {
  const held = place.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  place.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  if (held) [...place.querySelectorAll("[data-focus]")].find((one) => one.dataset.focus === held)?.focus();
}

/** Moves focus with the arrow keys inside a set of elements, one of which is in the tab order. */
export function rove(container, selector, columns) {
  const all = () => [...container.querySelectorAll(selector)];
  container.addEventListener("focusin", (event) => {
    const chosen = event.target.closest(selector);
    if (chosen) all().forEach((one) => (one.tabIndex = one === chosen ? 0 : -1));
  });
  container.addEventListener("keydown", (event) => {
    const items = all();
    const at = items.indexOf(event.target.closest(selector));
    if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns(), ArrowDown: columns(), Home: -at, End: items.length - 1 - at };
    if (!(event.key in steps)) return;
    event.preventDefault();
    items[Math.max(0, Math.min(items.length - 1, at + steps[event.key]))].focus();
  });
}

// --- Numbers and times as people read them.

export const count = (value) => Number(value ?? 0).toLocaleString("en");
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
export const points = (share) => {
  const size = Math.abs(100 * share).toFixed(1);
  return `${size === "0.0" ? "±" : share > 0 ? "+" : "−"}${size}`;
};
export const plural = (number, word, many = `${word}s`) => `${count(number)} ${number === 1 ? word : many}`;

export function when(text) {
  const time = new Date(text);
  if (!text || Number.isNaN(time.getTime())) return text || "";
  return time.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}

export function duration(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  if (seconds < 60) return `${seconds} s`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)} min ${seconds % 60} s` : `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

// --- One colour a version, the same everywhere on the page, always beside the version's name.

const TONES = 8;
let order = [];

/** Names in the order they were made; others follow as they appear. */
export function rememberVersions(names) {
  order = [...new Set([...names, ...order.filter((name) => !names.includes(name))])];
}

export function tone(name) {
  if (!order.includes(name)) order.push(name);
  return `tone-${order.indexOf(name) % TONES}`;
}

export const badge = (name) => el("span", { class: `badge ${tone(name)}` }, name);

// --- Verdicts as shapes, so that colour is never the only sign.

const SHAPES = {
  compatible: "M3 8.5l3.5 3.5L13 4.5",
  incompatible: "M3.5 3.5l9 9M12.5 3.5l-9 9",
  "not decided": "M5.2 5.6a2.8 2.8 0 1 1 4.3 2.4c-1 .6-1.5 1.1-1.5 2.2M8 12.8v.01",
  "self-test": "M3 3h10v10H3z",
  none: "M4 8h8",
};

export function verdictMark(verdict) {
  return svg("svg", { class: `mark ${String(verdict).replace(" ", "-")}`, viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: SHAPES[verdict] ?? SHAPES.none }));
}
