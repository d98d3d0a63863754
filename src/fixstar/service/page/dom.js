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

/** New content in a place; what had the focus there (by its `data-focus`) has it again. */
export function renew(place, ...children) {
  const held = place.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  place.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
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
