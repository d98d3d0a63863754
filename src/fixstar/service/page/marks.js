// Verdicts as shapes, so that nobody depends on colour.
import { svg } from "./dom.js";

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
