// Negative flips: queries that the old version answered rightly and the new one does not, as pictures.
import { address, call, versionPath } from "./api.js";
import { byId, el, renew } from "./dom.js";
import { picture } from "./picture.js";
import { problemView } from "./problem.js";
import { badge } from "./tones.js";

const SHOWN = 9;
let chosen = null;

/** Offers the versions that were checked, and shows the flips of one. */
export function showFlips(versions) {
  const checked = versions.filter((version) => version.check).map((version) => version.name);
  if (!checked.length) {
    renew(byId("flips"), el("p", { class: "note" }, "Queries that an upgrade would lose are shown here once a version was checked against another."));
    return;
  }
  if (!checked.includes(chosen)) chosen = checked.at(-1);
  const list = el("ul", { class: "flips" });
  const choice = el("select", { id: "flips-version", data: { focus: "flips" } }, checked.map((name) => el("option", { selected: name === chosen }, name)));
  choice.addEventListener("change", () => load((chosen = choice.value), list));
  renew(byId("flips"), el("label", { class: "inline" }, "Lost by upgrading to", choice), list);
  load(chosen, list);
}

async function load(version, list) {
  list.replaceChildren(el("li", { class: "note" }, "Loading …"));
  try {
    const flips = await call(address(versionPath(version, "/flips"), { limit: SHOWN }));
    if (version !== chosen) return;
    if (flips.length) list.replaceChildren(...flips.map((flip) => pair(flip, version)));
    else list.replaceChildren(el("li", { class: "note" }, `No query of the check is lost by ${version}.`));
  } catch (error) {
    list.replaceChildren(el("li", {}, problemView(error, { retry: () => load(version, list), small: true })));
  }
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
