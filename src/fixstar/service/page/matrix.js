// The compatibility matrix: rows ask, columns are asked. Every cell can be reached by key and says what it means.
import { byId, el, renew } from "./dom.js";
import { count, percent, points, when } from "./format.js";
import { verdictMark } from "./marks.js";
import { badge } from "./tones.js";

const LEVELS = 4; // depths of each colour, with accuracy
const WORDS = { compatible: "compatible", incompatible: "incompatible", "not decided": "not decided", "self-test": "self-test" };
const LEGEND = [["self-test", "self-test"], ["compatible", "compatible"], ["incompatible", "incompatible"], ["not decided", "not decided: too few queries"]];

export function showMatrix({ versions = [], cells = [], measured_on: measured = {} }) {
  const place = byId("matrix");
  if (!cells.length) {
    renew(place, el("p", { class: "note" }, "Nothing was measured yet. Check a version against the vectors that are there: ", el("code", {}, "fixstar check VERSION"), " or the button beside it."));
    return;
  }
  const found = new Map(cells.map((cell) => [`${cell.query_version}\n${cell.gallery_version}`, cell]));
  const accuracies = cells.map((cell) => cell.accuracy).filter((value) => value !== null);
  const low = Math.min(...accuracies);
  const high = Math.max(...accuracies);
  const level = (value) => Math.min(LEVELS - 1, Math.floor(((value - low) / Math.max(high - low, 0.02)) * LEVELS));
  const panel = el("p", { class: "cell-words", id: "cell-words", role: "status", "aria-live": "polite" }, "Choose a cell to read what it means.");
  const tell = (event) => {
    const cell = found.get(event.target.closest("[data-cell]")?.dataset.cell);
    if (cell) panel.replaceChildren(...sentence(cell), el("span", { class: "note" }, ` ${basis(measured[cell.check])}`));
  };
  const table = el(
    "table",
    { class: "matrix", on: { focusin: tell, mouseover: tell, click: tell } },
    el("caption", { class: "unseen" }, "Rows: the version that embedded the query. Columns: the version that embedded the gallery. Share of queries that find their class."),
    el("thead", {}, el("tr", {}, el("td", { class: "axis" }, "query \\ gallery"), versions.map((name) => el("th", { scope: "col" }, badge(name))))),
    el("tbody", {}, versions.map((query) => el("tr", {}, el("th", { scope: "row" }, badge(query)), versions.map((gallery) => box(found.get(`${query}\n${gallery}`), level))))),
  );
  walk(table);
  renew(place, el("div", { class: "wide" }, table), panel, legend(), el("p", { class: "note" }, "Per cent of queries that find their class first. Rows ask, columns are asked."));
}

/** Arrows move to the next measured cell in their direction; one cell is in the tab order. */
function walk(table) {
  const buttons = [...table.querySelectorAll("button")];
  buttons.forEach((button, row) => (button.tabIndex = row ? -1 : 0));
  table.addEventListener("focusin", (event) => event.target.matches("button") && buttons.forEach((button) => (button.tabIndex = button === event.target ? 0 : -1)));
  table.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const from = event.target.closest("td");
    if (!step || !from) return;
    event.preventDefault();
    let [row, column] = [from.parentNode.rowIndex, from.cellIndex];
    let next;
    do {
      [row, column] = [row + step[0], column + step[1]];
      next = table.rows[row]?.cells[column];
    } while (next && !next.querySelector("button"));
    next?.querySelector("button").focus();
  });
}

function box(cell, level) {
  if (!cell || cell.accuracy === null) return el("td", { class: "none" }, el("span", { class: "unseen" }, "not measured"));
  const kind = WORDS[cell.verdict] ?? "not decided";
  const spoken = `queries of ${cell.query_version} on vectors of ${cell.gallery_version}: ${percent(cell.accuracy)}, ${kind}`;
  const key = `${cell.query_version}\n${cell.gallery_version}`;
  return el(
    "td",
    {},
    el("button", { type: "button", class: `cell ${kind.replace(" ", "-")} level-${level(cell.accuracy)}`, "aria-label": spoken, title: kind, data: { cell: key, focus: key } }, el("span", {}, (100 * cell.accuracy).toFixed(1)), verdictMark(kind)),
  );
}

function sentence(cell) {
  const { query_version: query, gallery_version: gallery, accuracy, difference, low, high, verdict } = cell;
  if (verdict === "self-test") return ["Queries of ", badge(query), ` on its own vectors: ${percent(accuracy)} find their class.`];
  const own = typeof difference === "number" ? `, where ${gallery}'s own queries reach ${percent(accuracy - difference)}` : "";
  const interval = typeof low === "number" && typeof high === "number" ? ` (between ${points(low)} and ${points(high)})` : "";
  const change = typeof difference === "number" ? ` Difference ${points(difference)} points${interval}.` : "";
  const meaning = { compatible: " Compatible: nothing needs to be re-embedded.", incompatible: " Incompatible: queries lose by the upgrade." }[verdict] ?? " Not decided: more held-out queries would tell.";
  return ["Queries of ", badge(query), " on vectors of ", badge(gallery), `: ${percent(accuracy)}${own}.${change}`, el("strong", {}, meaning)];
}

const legend = () => el("ul", { class: "legend", "aria-label": "Marks" }, LEGEND.map(([kind, words]) => el("li", {}, verdictMark(kind), ` ${words}`)));

function basis(measured) {
  if (!measured) return "";
  const images = `${count(measured.queries)} queries, ${count(measured.gallery)} gallery images`;
  return `Measured on ${images}, ${percent(measured.confidence, 0)} confidence for all cells of a check together${measured.when ? `, ${when(measured.when)}` : ""}.`;
}
