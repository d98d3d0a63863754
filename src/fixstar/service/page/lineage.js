// Versions, newest first, with a rail from each to the one it came from.
import { call, versionPath } from "./api.js";
import { byId, el, renew } from "./dom.js";
import { count, percent, plural, points, when } from "./format.js";
import { verdictMark } from "./marks.js";
import { problemView, stepsView } from "./problem.js";
import { may } from "./session.js";
import { badge, tone } from "./tones.js";

const OUTCOMES = { pass: ["compatible", "check passed"], refuse: ["incompatible", "check refused it"], "missing evidence": ["not decided", "evidence is missing"] };

export function showLineage(versions, actions) {
  const rows = [...versions].reverse();
  if (!rows.length) {
    renew(byId("lineage"), el("li", { class: "note" }, "No version yet. Train one with ", el("code", {}, "fixstar train IMAGES")));
    return;
  }
  const rails = lanes(rows);
  renew(byId("lineage"), rows.map((version, row) => el("li", { class: tone(version.name) }, rail(rails, row), card(version, actions))));
}

/** For each row its lane, and the edges that pass it: a first child stays in its parent's lane, others get their own. */
export function lanes(rows) {
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

function card(version, actions) {
  const { name, check, deployed, retired, parent } = version;
  const [verdict, words] = OUTCOMES[check] ?? ["none", "not checked"];
  const focus = (what) => ({ focus: `${what} ${name}` });
  return el(
    "article",
    { class: deployed ? "version deployed" : "version", "aria-label": `Version ${name}` },
    el("header", {}, badge(name), deployed && el("span", { class: "chip live" }, "deployed"), retired && el("span", { class: "chip" }, "retired"), el("span", { class: `chip ${verdict.replace(" ", "-")}` }, verdictMark(verdict), words)),
    el("dl", {}, fact("Method", version.method), fact("Backbone", version.backbone), fact("Classes", version.capacity ? `${count(version.classes)} of ${count(version.capacity)}` : count(version.classes)), fact("Vectors", count(version.vectors)), fact("From", parent ?? "scratch"), fact("fixstar", version.fixstar)),
    check && details(name),
    may("admin") &&
      !retired &&
      el(
        "div",
        { class: "buttons" },
        el("button", { type: "button", data: focus("check"), on: { click: () => actions.check(name) } }, check ? "Check again" : "Run check"),
        !deployed && el("button", { type: "button", class: check === "pass" ? "primary" : "", data: focus("deploy"), on: { click: () => actions.deploy(version) } }, "Deploy …"),
      ),
  );
}

const fact = (name, value) => (value === null || value === undefined || value === "" ? null : el("div", {}, el("dt", {}, name), el("dd", {}, String(value))));

/** What the check rests on, loaded when somebody wants to know. */
function details(name) {
  const place = el("div", { class: "evidence" }, "Loading …");
  const load = async () => {
    try {
      place.replaceChildren(...evidence(await call(versionPath(name, "/check"))));
    } catch (error) {
      place.replaceChildren(problemView(error, { retry: load, small: true }));
    }
  };
  const shown = el("details", {}, el("summary", { data: { focus: `details ${name}` } }, "What the check found"), place);
  shown.addEventListener("toggle", () => shown.open && load(), { once: true });
  return shown;
}

function evidence(check) {
  const sentences = [...(check.reasons ?? []), ...(check.notes ?? [])];
  const cells = (check.cells ?? []).map((cell) =>
    el("li", {}, verdictMark(cell.verdict), ` on vectors of ${cell.version}: ${percent(cell.cross_test)}, own queries ${percent(cell.self_test)} (${points(cell.cross_test - cell.self_test)} points, ${points(cell.low)} to ${points(cell.high)}); ${plural(cell.negative_flips, "negative flip")}, ${count(cell.positive_flips)} positive`),
  );
  return [
    el("ul", {}, sentences.map((sentence) => el("li", {}, sentence))),
    stepsView(check.next_steps) ?? "",
    el("ul", {}, cells),
    el("p", { class: "note" }, [check.queries && `${plural(check.queries, "query", "queries")} on ${plural(check.gallery, "image")}`, check.confidence && `${percent(check.confidence, 0)} confidence`, when(check.when)].filter(Boolean).join(" · ")),
  ];
}
