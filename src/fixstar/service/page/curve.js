// Accuracy over the share re-embedded: lines for what is predicted, points for what was measured.
import { svg } from "./dom.js";
import { percent } from "./format.js";

const WIDTH = 560;
const HEIGHT = 230;
const LEFT = 54;
const RIGHT = 12;
const BOTTOM = 30;
const TOP = 26;

/** A drawing of `[{name, kind, points: [[share, accuracy]]}]`. */
export function curve(lines) {
  const values = lines.flatMap((line) => line.points.map(([, value]) => value));
  const spare = Math.max(0.01, (Math.max(...values) - Math.min(...values)) * 0.1);
  const low = Math.max(0, Math.min(...values) - spare);
  const high = Math.min(1, Math.max(...values) + spare);
  const x = (share) => LEFT + share * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / Math.max(high - low, 1e-6)) * (HEIGHT - TOP - BOTTOM);
  const spoken = lines.map(({ name, points }) => `${name}: ${percent(points[0][1])} to ${percent(points.at(-1)[1])}`).join("; ");
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": spoken }, axes(x, y, low, high), lines.map((line) => drawn(line, x, y)), lines.map(legend));
}

function axes(x, y, low, high) {
  const heights = [low, (low + high) / 2, high].map((value) => [svg("line", { class: "gridline", x1: x(0), x2: x(1), y1: y(value), y2: y(value) }), svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, percent(value, 0))]);
  const shares = [0, 0.25, 0.5, 0.75, 1].map((share) => svg("text", { class: "tick", x: x(share), y: HEIGHT - 8, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, percent(share, 0)));
  return [heights, shares].flat(2);
}

function drawn({ kind, points }, x, y) {
  const path = svg("path", { class: `line ${kind}`, d: `M${points.map(([share, value]) => `${x(share).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}` });
  const dots = kind === "measured" ? points.map(([share, value]) => svg("circle", { class: "dot", cx: x(share), cy: y(value), r: 4.5 }, svg("title", {}, `${percent(value)} at ${percent(share, 0)}`))) : [];
  return svg("g", {}, path, dots);
}

function legend({ name, kind }, row) {
  const at = LEFT + row * 175;
  return svg("g", { "aria-hidden": "true" }, svg("line", { class: `line ${kind}`, x1: at, x2: at + 20, y1: 10, y2: 10 }), kind === "measured" && svg("circle", { class: "dot", cx: at + 10, cy: 10, r: 4.5 }), svg("text", { class: "tick", x: at + 26, y: 14 }, name));
}
