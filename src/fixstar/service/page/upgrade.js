// One upgrade: what it does to searches, in a sentence, and which searches get worse and which get better.
import { address, call, fetchBlob, itemKind, versionPath } from "./api.js";
import { badge, byId, count, el, percent, plural, points, renew, verdictMark } from "./dom.js";
import { picture } from "./picture.js";
import { problemView, tellProblem } from "./problem.js";
import { useImage } from "./search.js";

const SHOWN = 9; // flips of each kind
const HARDEST = 6; // classes
let chosen = null; // the version that is looked at

/** What each outcome of a check is called: its mark, and words for a chip. */
const OUTCOMES = { pass: ["compatible", "check passed"], refuse: ["incompatible", "check refused it"], "missing evidence": ["not decided", "evidence is missing"] };

export const outcomeChip = (outcome) => {
  const [verdict, words] = OUTCOMES[outcome] ?? ["none", "not checked"];
  return el("span", { class: `chip ${verdict.replace(" ", "-")}` }, verdictMark(verdict), words);
};

/** On which images a check was made. */
export const images = ({ data = {} }) =>
  data.source === "held out" ? "held out from training" : [data.source === "named" ? `${itemKind()}s named ${data.name}` : data.name, data.fingerprint && `digest ${data.fingerprint.slice(0, 8)}`].filter(Boolean).join(", ");

/** Offers the versions that were checked, and tells the upgrade to one of them. */
export function showUpgrade(versions, status) {
  const checked = versions.filter((version) => version.check).map((version) => version.name);
  if (!checked.length) {
    renew(byId("verdict"), el("p", { class: "note" }, "No version was checked yet. The check of a newer version says here what searches win and lose by it."));
    renew(byId("flips"), el("p", { class: "note" }, "Queries that an upgrade would lose are shown here once a version was checked against another."));
    return;
  }
  if (!checked.includes(chosen)) chosen = checked.at(-1);
  const choice = el("select", { id: "upgrade-version", data: { focus: "upgrade" } }, checked.map((name) => el("option", { selected: name === chosen }, name)));
  const place = el("div", { role: "status" });
  choice.addEventListener("change", () => {
    for (const one of [place, byId("flips")]) one.replaceChildren(el("p", { class: "note" }, "Loading …"));
    load((chosen = choice.value), place, status);
  });
  renew(byId("verdict"), el("label", { class: "inline" }, "Upgrade to", choice), place);
  return load(chosen, place, status);
}

async function load(version, place, status) {
  try {
    const check = await call(versionPath(version, "/check"));
    const cells = [...check.cells].sort((a, b) => (status.vectors[b.version] ?? 0) - (status.vectors[a.version] ?? 0));
    const flips = (kind) => call(address(versionPath(version, "/flips"), { limit: SHOWN, against: cells[0]?.version, kind }));
    const [lost, won] = await Promise.all(["lost", "won"].map(flips));
    if (version !== chosen) return;
    renew(place, verdict(check, cells));
    renew(byId("flips"), cells.length ? changes(check, cells[0], lost, won) : el("p", { class: "note" }, "There were no stored vectors to compare with."));
  } catch (error) {
    renew(place, problemView(error, { retry: () => load(version, place, status), small: true }));
  }
}

// --- The verdict, computed from the check.

function verdict(check, [first, ...others]) {
  const basis = [`${plural(check.queries, "query", "queries")} on ${plural(check.gallery, itemKind())}`, images(check), `${percent(check.confidence, 0)} confidence`];
  return [
    el("p", { class: "sentence" }, badge(check.version), first ? ` ${onStored(first)}${reembedded(check.self_test, first)}.` : " was not compared with stored vectors."),
    el("p", { class: "note" }, outcomeChip(check.outcome), first && ` ${interval(first)}.`),
    ...others.map((cell) => el("p", { class: "note" }, `Vectors of ${cell.version}: ${onStored(cell)}; ${interval(cell)}.`)),
    check.tolerance > 0 && el("p", { class: "note" }, `The check accepts a loss of less than ${hundredth(check.tolerance)} points.`),
    el("p", { class: "note" }, `Measured with ${basis.filter(Boolean).join(", ")}.`),
  ];
}

const hundredth = (share) => Number(Math.abs(100 * share).toFixed(1));

function onStored({ version, difference, low, high, verdict }) {
  const size = hundredth(difference);
  if (!size) return `${verdict === "not decided" ? "may find" : "finds"} as much as ${version} on stored vectors`;
  const sure = low >= 0 || high <= 0; // not the verdict: with a tolerance it may pass undecided
  const verb = difference < 0 ? "lose" : "win";
  return `${sure ? `${verb}s` : `may ${verb}`} ${size} of 100 searches on stored vectors`;
}

function reembedded(own, cell) {
  if (own === null) return "";
  const gain = own - cell.self_test;
  return `; re-embedding everything ${hundredth(gain) ? `${gain < 0 ? "loses" : "gains"} ${hundredth(gain)} points` : "changes nothing"}`;
}

const interval = ({ version, low, high }) => `between ${points(low)} and ${points(high)} points against ${version}'s own queries`;

// --- Searches that change: the classes hit hardest, then queries that get worse and those that get better, as pictures.

function changes({ version, queries }, cell, lost, won) {
  const on = ` of ${count(queries)} searches on vectors of ${cell.version}`;
  return [
    classes(cell.classes),
    el("h4", {}, `Get worse: ${count(cell.negative_flips)}${on}`),
    lost.length ? el("ul", { class: "flips" }, lost.map((flip) => pair(flip, "right", "wrong"))) : el("p", { class: "note" }, cell.negative_flips ? "The check kept no pictures." : `No query of the check is lost by ${version}.`),
    el("h4", {}, `Get better: ${count(cell.positive_flips)}${on}`),
    won.length ? el("ul", { class: "flips" }, won.map((flip) => pair(flip, "wrong", "right"))) : el("p", { class: "note" }, cell.positive_flips ? "The check kept no pictures." : `No query of the check is won by ${version}.`),
  ];
}

/** The classes that lose most, as bars. */
function classes(all = []) {
  const worst = all.filter(({ lost, won }) => lost > won).slice(0, HARDEST);
  if (!worst.length) return null;
  const line = ({ label, queries, lost, won }) => {
    const bar = el("span", { class: "bar", "aria-hidden": "true" }, el("i"));
    bar.firstChild.style.setProperty("--share", (lost - won) / queries);
    return el("li", {}, el("span", { class: "wrap" }, label), bar, el("span", { class: "note" }, `loses ${lost} of ${count(queries)}${won ? `, wins ${won}` : ""}`));
  };
  return [el("h4", {}, "Classes hit hardest"), el("ul", { class: "hardest" }, worst.map(line))];
}

function pair({ query, label, old, new: found }, before, after) {
  const again = async () => {
    try {
      useImage(new File([await fetchBlob(query)], `${label}.png`, { type: "image/png" }));
    } catch (error) {
      tellProblem(error);
    }
  };
  const search = query && el("button", { type: "button", class: "small", "aria-label": `Search with this query: ${label}`, on: { click: again } }, "Search with it");
  return el("li", {}, el("div", {}, shown("asked", query, label, "asked"), search), shown(before, old.thumbnail, old.label, badge(old.version), " found"), shown(after, found.thumbnail, found.label, badge(found.version), " finds"));
}

function shown(kind, url, label, ...who) {
  const name = label ?? "no label";
  return el("figure", { class: kind }, picture(url, `${kind === "asked" ? "query" : "found"}: ${name}`), el("figcaption", {}, el("span", {}, ...who), el("strong", { class: "wrap" }, name)));
}
