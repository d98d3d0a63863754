// Items as a grid of buttons: one press is "more like this", arrows move, "i" shows the item.
import { badge, byId, el, rove, tone } from "./dom.js";
import { shownItem } from "./picture.js";

const UNLIKELY = "Of the queries that have a match, 95 in 100 have a better hit than these, as measured by the check.";
const COSINE = { word: "cosine", spoken: "cosine", note: "scores are cosines", title: "The cosine between the vectors of query and item: 1 is the same direction, 0 nothing in common." };
const TRANSLATED = { word: "score", spoken: "score", note: "scores of vectors of several versions", title: "Where the item's vector is of another version it is compared after a translation: 1 is the same direction, 0 nothing in common." };
const SUM = { word: "score", spoken: "score", note: "scores are cosines, or sums of two where vectors are translated", title: "The cosine between the vectors of query and item or, where the item's vector is of an older version and is translated, the weighted sum of two: 1 is the same direction, 0 nothing in common." };
const RELATIVE = { word: "relative", spoken: "relative score", note: "scores are relative to other classes of the gallery", title: "How much likelier the query and the item are of one class than of two, if the gallery holds the query's class. Whether it does is told apart by the check's threshold." };

const list = byId("results");
const compared = byId("compared");
const shown = new Map(); // id -> [item, scale]
let doing = {};

/** Begins to listen: `like(id)` shows more like an item, `details(item, scale)` the item. */
export function startResults(actions) {
  doing = actions;
  listen(list);
}

export const isShown = (id) => shown.has(id);

function listen(grid) {
  rove(grid, ".hit", () => getComputedStyle(grid).gridTemplateColumns.split(" ").length);
  grid.addEventListener("click", (event) => {
    const pressed = event.target.closest("[data-id]");
    if (pressed) (pressed.matches(".details") ? details : doing.like)(pressed.dataset.id);
  });
  grid.addEventListener("keydown", (event) => {
    const hit = event.target.closest(".hit");
    if (hit && event.key === "i" && !event.ctrlKey && !event.metaKey && !event.altKey) details(hit.dataset.id);
  });
}

const details = (id) => doing.details(...shown.get(id));

/** What the scores of an answer mean. */
export function scaleOf({ calibrated, models, version, hits }) {
  if (calibrated) return RELATIVE;
  if (models.length > 1) return SUM;
  const direct = hits.every((hit) => hit.version === version || hit.version.endsWith(`@${version}`));
  return direct ? COSINE : TRANSLATED;
}

/** Items as tiles, behind those that are there with `add`. */
export function showItems(items, { add = false, scale = COSINE } = {}) {
  const appended = add && list.querySelector(".hit");
  if (!appended) clear();
  fill(list, items, scale, appended);
}

/** The answers of two versions to one query, side by side. What only one of them found is marked. */
export function showCompared(answers) {
  clear();
  const found = answers.map(({ hits }) => new Set(hits.map(({ id }) => id)));
  const columns = answers.map((answer, which) => {
    const { version, hits } = answer;
    const grid = el("ul", { class: "grid", "aria-label": `Found by ${version}` });
    listen(grid);
    fill(grid, hits, scaleOf(answer));
    for (const hit of grid.querySelectorAll(".hit")) {
      if (!found[1 - which].has(hit.dataset.id)) hit.parentElement.append(el("span", { class: "only" }, `only ${version}`));
    }
    const others = hits.filter(({ id }) => !found[1 - which].has(id)).length;
    return el("section", {}, el("h3", {}, badge(version), ` found, ${others ? `${others} of ${hits.length} found by it alone` : "all of them found by both"}`), grid);
  });
  compared.replaceChildren(...columns);
}

function fill(grid, items, scale, add = false) {
  for (const item of items) shown.set(item.id, [item, scale]);
  const tiles = items.map((item) => el("li", {}, tile(item, scale), detailsButton(item)));
  if (items.length && items.every(({ unlikely }) => unlikely)) tiles.unshift(el("li", { class: "group" }, el("h3", {}, "Probably not in the catalogue"), el("p", { class: "note" }, UNLIKELY)));
  if (add) grid.append(...tiles);
  else grid.replaceChildren(...tiles);
  grid.querySelectorAll(".hit").forEach((hit, row) => (hit.tabIndex = row ? -1 : 0));
}

function clear() {
  shown.clear();
  list.removeAttribute("aria-busy");
  list.replaceChildren();
  compared.replaceChildren();
}

export function showWaiting(count) {
  clear();
  list.setAttribute("aria-busy", "true");
  list.replaceChildren(...Array.from({ length: count }, () => el("li", { class: "waiting", "aria-hidden": "true" })));
}

/** Words in place of results: a bold line, then parts of a sentence. */
export function showEmpty(title, ...parts) {
  clear();
  list.replaceChildren(el("li", { class: "empty" }, el("strong", {}, title), ...parts));
}

function tile(item, scale) {
  const label = item.label ?? "";
  const scored = typeof item.score === "number";
  const spoken = [label || "no label", scored && `${scale.spoken} ${item.score.toFixed(3)}`, `vector of ${item.version}`, `id ${item.id}`, "more like this"];
  const meter = scored && el("span", { class: "meter", "aria-hidden": "true" }, el("i"));
  if (meter) meter.firstChild.style.setProperty("--share", Math.max(0, Math.min(1, item.score)));
  return el(
    "button",
    { type: "button", class: `hit ${tone(item.version)}`, title: item.id, "aria-label": spoken.filter(Boolean).join(", "), data: { id: item.id } },
    shownItem(item),
    el(
      "span",
      { class: "facts" },
      el("span", { class: "label" }, label || "no label"),
      el("span", { class: "row" }, scored ? el("span", { class: "measure", title: scale.title }, el("span", { class: "score" }, item.score.toFixed(3)), " ", el("span", { class: "scale" }, scale.word)) : el("span", { class: "id" }, el("bdi", {}, item.id)), badge(item.version)),
      meter,
      scored && el("span", { class: "id" }, el("bdi", {}, item.id)),
    ),
    el("span", { class: "again", "aria-hidden": "true" }, "More like this"),
  );
}

/** Beside the tile, as a button holds no other; by key it is "i" on the tile. */
function detailsButton({ id, label }) {
  return el("button", { type: "button", class: "icon details", tabindex: -1, "aria-label": `Details of ${label ?? "no label"}, ${id}`, title: "Details (i)", data: { id } }, el("span", { "aria-hidden": "true" }, "i"));
}
