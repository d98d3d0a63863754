// Versions, newest first, with a rail from each to the one it came from.
import { call, itemKind, may, versionPath } from "./api.js";
import { badge, byId, count, el, isNarrow, percent, plural, points, renew, tone, verdictMark, when } from "./dom.js";
import { problemView, stepsView } from "./problem.js";
import { images, outcomeChip } from "./upgrade.js";

export function showLineage(versions, actions) {
  const rows = [...versions].reverse();
  if (!rows.length) {
    renew(byId("lineage"), el("li", { class: "note" }, "No version yet. For photos: ", el("code", {}, "fixstar add efficientnet-lite0"), ". For drawings and unusual images: ", el("code", {}, "fixstar train IMAGES")));
    return;
  }
  const rails = lanes(rows);
  const shown = (version) => !isNarrow() || version.deployed || version === rows[0];
  renew(byId("lineage"), rows.map((version, row) => el("li", { class: tone(version.name) }, rail(rails, row), card(version, actions, shown(version)))));
}

const opened = new Set(); // versions that the visitor unfolded: they stay so when the list is made again

/** For each row its lane, and the edges that pass it: a first child stays in its parent's lane, others get their own. */
function lanes(rows) {
  const lane = {};
  let used = 0;
  const taken = new Set(); // parents whose lane a child has
  for (const { name, parent } of [...rows].reverse()) {
    const free = parent in lane && !taken.has(parent);
    lane[name] = free ? lane[parent] : used++;
    if (free) taken.add(parent);
  }
  const at = Object.fromEntries(rows.map(({ name }, row) => [name, row]));
  const edges = rows.filter(({ parent }) => parent in at).map(({ name, parent }) => ({ from: at[name], to: at[parent], lane: lane[name], target: lane[parent] }));
  return { lane: rows.map(({ name }) => lane[name]), edges, width: Math.max(1, used) };
}

function rail({ lane, edges, width }, row) {
  const parts = [];
  for (const edge of edges) {
    if (edge.from === row) parts.push(["below", edge.lane]);
    else if (edge.from < row && row < edge.to) parts.push(["through", edge.lane]);
    else if (edge.to === row) parts.push(edge.lane === edge.target ? ["above", edge.lane] : ["elbow", edge.lane]);
  }
  const place = el("div", { class: "rail", "aria-hidden": "true" }, parts.map(([kind]) => el("i", { class: kind })), el("b"));
  parts.forEach(([, at], position) => place.children[position].style.setProperty("--lane", at));
  place.style.setProperty("--lanes", width);
  place.lastChild.style.setProperty("--lane", lane[row]);
  return place;
}

/** A version; on a phone all but the deployed and the newest are folded to their first line. */
function card(version, actions, shown) {
  const { name, check, deployed, retired } = version;
  const header = el("header", {}, badge(name), deployed && el("span", { class: "chip live" }, "deployed"), retired && el("span", { class: "chip" }, "retired"), outcomeChip(check));
  const rest = facts(version, actions);
  const attributes = { class: deployed ? "version deployed" : "version", "aria-label": `Version ${name}` };
  if (shown) return el("article", attributes, header, rest);
  const folded = el("details", { class: "fold", open: opened.has(name) }, el("summary", { data: { focus: `unfold ${name}` } }, header), rest);
  folded.addEventListener("toggle", () => (folded.open ? opened.add(name) : opened.delete(name)));
  return el("article", attributes, folded);
}

function facts(version, actions) {
  const { name, check, deployed, retired, parent } = version;
  const focus = (what) => ({ focus: `${what} ${name}` });
  return [
    el("dl", {}, fact("Method", version.method), fact("Backbone", version.backbone), fact("Classes", version.capacity ? `${count(version.classes)} of ${count(version.capacity)}` : count(version.classes)), fact("Vectors", count(version.vectors)), fact("From", parent ?? "scratch"), fact("fixstar", version.fixstar)),
    version.gain && gain(version.gain),
    check && details(name),
    may("admin") &&
      !retired &&
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "button", data: { ...focus("check"), job: `check ${name}` }, on: { click: () => actions.check(name) } }, check ? "Check again" : "Run check"),
        !deployed && el("button", { type: "button", class: check === "pass" ? "primary" : "", data: focus("deploy"), on: { click: () => actions.deploy(version) } }, "Deploy …"),
        !deployed && check && check !== "pass" && el("button", { type: "button", data: focus("old queries"), on: { click: () => actions.deploy(version, "old") } }, "Deploy, old queries …"),
      ),
  ];
}

/** Three numbers on one scale: what is found now, at once after deploying, and with everything embedded again. */
function gain({ version, now, at_once: atOnce, reembedded }) {
  const values = [["now", now], ["at once", atOnce], ["all re-embedded", reembedded]];
  const low = Math.min(now, atOnce, reembedded) - 0.02;
  const high = Math.max(now, atOnce, reembedded);
  const scale = el("ol", { class: "gain", "aria-label": `Found among vectors of ${version}` }, values.map(([words, value]) => el("li", {}, el("span", {}, words), el("i", { "aria-hidden": "true" }), el("b", {}, percent(value)))));
  values.forEach(([, value], row) => scale.children[row].style.setProperty("--share", (value - low) / (high - low)));
  const share = reembedded > now ? (atOnce - now) / (reembedded - now) : null;
  const words = share === null ? "It is no better than the model that is deployed." : share > 0 ? `${percent(share, 0)} of the whole gain is reached at once.` : "Nothing is gained without re-embedding.";
  return el("div", {}, scale, el("p", { class: "note" }, words));
}

const fact = (name, value) => (value === null || value === undefined || value === "" ? null : el("div", {}, el("dt", {}, name), el("dd", {}, String(value))));

/** What the check rests on, loaded when somebody wants to know. */
function details(name) {
  const place = el("div", { class: "evidence" }, "Loading …");
  const load = async () => {
    try {
      const [check, all] = await Promise.all([call(versionPath(name, "/check")), call(versionPath(name, "/checks"))]);
      place.replaceChildren(...evidence(check), all.length > 1 ? history(all) : "");
    } catch (error) {
      place.replaceChildren(problemView(error, { retry: load, small: true }));
    }
  };
  const shown = el("details", {}, el("summary", { data: { focus: `details ${name}` } }, "What the check found"), place);
  shown.addEventListener("toggle", () => shown.open && load(), { once: true });
  return shown;
}

/** Every check, newest first. One with less evidence does not replace one with more. */
function history(checks) {
  const line = (check) => [when(check.when), check.outcome, plural(check.queries, "query", "queries"), images(check), `tolerance ${points(check.tolerance)}`].filter(Boolean).join(" · ");
  return el("details", {}, el("summary", {}, `All ${count(checks.length)} checks`), el("ul", {}, [...checks].reverse().map((check) => el("li", {}, line(check)))));
}

function evidence(check) {
  const sentences = [...(check.reasons ?? []), ...(check.notes ?? [])];
  const cells = (check.cells ?? []).map((cell) =>
    el("li", {}, verdictMark(cell.verdict), ` on vectors of ${cell.version}: ${percent(cell.cross_test)}, own queries ${percent(cell.self_test)} (${points(cell.cross_test - cell.self_test)} points, ${points(cell.low)} to ${points(cell.high)}); ${plural(cell.negative_flips, "negative flip")}, ${count(cell.positive_flips)} positive`),
  );
  const alone = (check.cells ?? []).filter((cell) => cell.one_model).map(({ version, one_model: one }) =>
    el("li", {}, verdictMark(one.verdict), ` on vectors of ${version} with one model per query: ${percent(one.cross_test)} (${points(one.low)} to ${points(one.high)} points)`),
  );
  const thresholds = Object.entries(check.thresholds ?? {}).map(([name, one]) =>
    el("li", {}, `probably not in the catalogue: hits among vectors of ${name} with a score below ${one.score.toFixed(3)}. ${percent(one.false_alarms)} of the queries with a match have no better hit, ${percent(one.detected)} of those without`),
  );
  return [
    el("ul", {}, sentences.map((sentence) => el("li", {}, sentence))),
    stepsView(check.next_steps) ?? "",
    el("ul", {}, cells, alone, thresholds),
    el("p", { class: "note" }, [check.queries && `${plural(check.queries, "query", "queries")} on ${plural(check.gallery, itemKind())}`, images(check), check.confidence && `${percent(check.confidence, 0)} confidence`, when(check.when)].filter(Boolean).join(" · ")),
  ];
}

// --- The compatibility matrix: rows ask, columns are asked. Every cell can be reached by key and says what it means.

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
  renew(place, el("p", { class: "note", id: "matrix-images" }, imagesOf(Object.values(measured)[0])), el("div", { class: "wide" }, table), panel, legend(), el("p", { class: "note" }, `${isByRelevance(measured) ? "" : "Per cent of queries that find their class first. "}Rows ask, columns are asked.`));
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
  const meaning = { compatible: " Compatible: nothing needs to be re-embedded.", incompatible: " Incompatible: the upgrade makes queries worse." }[verdict] ?? " Not decided: more held-out queries would tell.";
  return ["Queries of ", badge(query), " on vectors of ", badge(gallery), `: ${percent(accuracy)}${own}.${change}`, el("strong", {}, meaning)];
}

const legend = () => el("ul", { class: "legend", "aria-label": "Marks" }, LEGEND.map(([kind, words]) => el("li", {}, verdictMark(kind), ` ${words}`)));

const isByRelevance = (measured) => Object.values(measured)[0]?.source === "relevant";

function imagesOf(measured) {
  if (!measured) return "";
  if (measured.source === "relevant") return `All figures are nDCG@10 of ${count(measured.queries)} queries with known relevant ones among ${count(measured.gallery)} stored ${itemKind()}s.`;
  const source = measured.source === "held out" ? " held out from training" : "";
  const classes = measured.classes ? ` of ${count(measured.classes)} classes` : "";
  return `All figures are of one set: ${count(measured.images ?? measured.queries + measured.gallery)} labelled ${itemKind()}s${classes}${source}.`;
}

function basis(measured) {
  if (!measured) return "";
  const images = `${count(measured.queries)} queries, ${count(measured.gallery)} gallery ${itemKind()}s`;
  return `Measured on ${images}, ${percent(measured.confidence, 0)} confidence for all cells of a check together${measured.when ? `, ${when(measured.when)}` : ""}.`;
}
