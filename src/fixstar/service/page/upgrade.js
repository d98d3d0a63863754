// One upgrade: what it does to searches, in a sentence, and the searches that change.
import { address, call, versionPath } from "./api.js";
import { badge, byId, el, percent, plural, points, renew, verdictMark } from "./dom.js";
import { picture } from "./picture.js";
import { problemView } from "./problem.js";

const SHOWN = 9;
let chosen = null; // the version that is looked at

/** What each outcome of a check is called: its mark, and words for a chip. */
const OUTCOMES = { pass: ["compatible", "check passed"], refuse: ["incompatible", "check refused it"], "missing evidence": ["not decided", "evidence is missing"] };

export const outcomeChip = (outcome) => {
  const [verdict, words] = OUTCOMES[outcome] ?? ["none", "not checked"];
  return el("span", { class: `chip ${verdict.replace(" ", "-")}` }, verdictMark(verdict), words);
};

/** On which images a check was made. */
export const images = ({ data = {} }) => (data.source === "held out" ? "held out from training" : (data.name ?? ""));

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
    const [check, flips] = await Promise.all([call(versionPath(version, "/check")), call(address(versionPath(version, "/flips"), { limit: SHOWN }))]);
    if (version !== chosen) return;
    renew(place, verdict(check, status));
    renew(byId("flips"), changes(check, flips));
  } catch (error) {
    renew(place, problemView(error, { retry: () => load(version, place, status), small: true }));
  }
}

// --- The verdict, computed from the check.

function verdict(check, status) {
  const [first, ...others] = [...check.cells].sort((a, b) => (status.vectors[b.version] ?? 0) - (status.vectors[a.version] ?? 0));
  const basis = [`${plural(check.queries, "query", "queries")} on ${plural(check.gallery, "image")}`, images(check), `${percent(check.confidence, 0)} confidence`];
  return [
    el("p", { class: "sentence" }, badge(check.version), first ? ` ${onStored(first)}${reembedded(check.self_test, first)}.` : " was not compared with stored vectors."),
    el("p", { class: "note" }, outcomeChip(check.outcome), first && ` ${interval(first)}.`),
    ...others.map((cell) => el("p", { class: "note" }, `Vectors of ${cell.version}: ${onStored(cell)}; ${interval(cell)}.`)),
    el("p", { class: "note" }, `Measured with ${basis.filter(Boolean).join(", ")}.`),
  ];
}

const hundredth = (share) => Number(Math.abs(100 * share).toFixed(1));

function onStored({ version, difference, verdict }) {
  const size = hundredth(difference);
  const sure = verdict !== "not decided";
  if (!size) return `${sure ? "finds" : "may find"} as much as ${version} on stored vectors`;
  const verb = difference < 0 ? "lose" : "win";
  return `${sure ? `${verb}s` : `may ${verb}`} ${size} of 100 searches on stored vectors`;
}

function reembedded(own, cell) {
  if (own === null) return "";
  const gain = own - cell.self_test;
  return `; re-embedding everything ${hundredth(gain) ? `${gain < 0 ? "loses" : "gains"} ${hundredth(gain)} points` : "changes nothing"}`;
}

const interval = ({ version, low, high }) => `between ${points(low)} and ${points(high)} points against ${version}'s own queries`;

// --- Negative flips: queries that the old version answered rightly and the new one does not, as pictures.

function changes({ version }, flips) {
  if (!flips.length) return el("p", { class: "note" }, `No query of the check is lost by ${version}.`);
  return el("ul", { class: "flips" }, flips.map((flip) => pair(flip, version)));
}

function pair(flip, version) {
  const old = flip.old ?? {};
  const found = flip.new ?? {};
  return el(
    "li",
    {},
    shown("asked", flip.query, flip.label, "asked"),
    shown("right", old.thumbnail, old.label, badge(old.version ?? "old"), " found"),
    shown("wrong", found.thumbnail, found.label, badge(version), " found"),
  );
}

function shown(kind, url, label, ...who) {
  const name = label ?? "no label";
  return el("figure", { class: kind }, picture(url, `${kind === "asked" ? "query" : "found"}: ${name}`), el("figcaption", {}, el("span", {}, ...who), el("strong", { class: "wrap" }, name)));
}
