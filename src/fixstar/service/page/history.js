// The share of vectors by version over time, stacked. What holds, holds until the next sample.
import { badge, byId, count, el, percent, renew, svg, tone, when } from "./dom.js";

const WIDTH = 560;
const HEIGHT = 220;
const LEFT = 54;
const BOTTOM = 26;
const TOP = 8;

export function showHistory(samples) {
  const begun = samples.findIndex((sample) => total(sample) > 0);
  if (begun < 0) {
    renew(byId("history"), el("p", { class: "note" }, "The gallery was empty so far. Its growth is drawn here."));
    return;
  }
  const known = samples.slice(begun); // what was emptied later is shown so
  const names = [...new Set(known.flatMap((sample) => Object.keys(sample.vectors)))].filter((name) => known.some((sample) => sample.vectors[name] > 0));
  renew(
    byId("history"),
    el("figure", { class: "chart" }, drawing(known, names), el("figcaption", {}, legend(known.at(-1), names))),
    el("details", {}, el("summary", { data: { focus: "history" } }, "As a table"), table(known, names)),
  );
}

const total = (sample) => Object.values(sample.vectors).reduce((sum, number) => sum + number, 0);
const share = (sample, name) => (total(sample) ? (sample.vectors[name] ?? 0) / total(sample) : 0);

function legend(last, names) {
  const empty = total(last) === 0;
  const lines = names.map((name) => el("li", {}, badge(name), empty ? "" : ` ${percent(share(last, name), 0)} now`));
  return [empty && el("p", { class: "note" }, "The gallery is empty now."), el("ul", { class: "legend" }, lines)];
}

function drawing(samples, names) {
  const first = Date.parse(samples[0].when);
  const last = Math.max(Date.now(), first + 60000, Date.parse(samples.at(-1).when));
  const x = (time) => LEFT + ((time - first) / (last - first)) * (WIDTH - LEFT - 8);
  const y = (value) => TOP + (1 - value) * (HEIGHT - TOP - BOTTOM);
  const empty = total(samples.at(-1)) === 0;
  const spoken = names.map((name) => `${name}: ${percent(share(samples[0], name), 0)} at first${empty ? "" : `, ${percent(share(samples.at(-1), name), 0)} now`}`).join("; ") + (empty ? ". The gallery is empty now" : "");
  const stacked = samples.map(() => 0);
  const areas = names.map((name) => {
    const lower = [...stacked];
    samples.forEach((sample, row) => (stacked[row] += share(sample, name)));
    return svg("path", { class: `area ${tone(name)}`, d: area(samples, lower, stacked, x, y, last) }, svg("title", {}, name));
  });
  return svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `Share of vectors by version over time. ${spoken}` },
    [0, 0.5, 1].map((value) => [svg("line", { class: "gridline", x1: LEFT, x2: WIDTH - 8, y1: y(value), y2: y(value) }), svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, percent(value, 0))]),
    areas,
    svg("text", { class: "tick", x: LEFT, y: HEIGHT - 6 }, when(samples[0].when)),
    svg("text", { class: "tick", x: WIDTH - 8, y: HEIGHT - 6, "text-anchor": "end" }, "now"),
  );
}

function area(samples, lower, upper, x, y, last) {
  const steps = (values) => samples.flatMap((sample, row) => {
    const until = row + 1 < samples.length ? Date.parse(samples[row + 1].when) : last;
    return [[x(Date.parse(sample.when)), y(values[row])], [x(until), y(values[row])]];
  });
  const corners = [...steps(upper), ...steps(lower).reverse()];
  return `M${corners.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}Z`;
}

function table(samples, names) {
  return el(
    "div",
    { class: "wide" },
    el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "When"), names.map((name) => el("th", { scope: "col" }, name)))), el("tbody", {}, samples.slice(-50).map((sample) => el("tr", {}, el("th", { scope: "row" }, when(sample.when)), names.map((name) => el("td", {}, count(sample.vectors[name])))))))
  );
}
