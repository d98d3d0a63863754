// Items as a grid of buttons: one press is "more like this", arrows move.
import { byId, el, rove } from "./dom.js";
import { picture } from "./picture.js";
import { badge, tone } from "./tones.js";

const list = byId("results");

/** Begins to listen; `open(id)` shows more like an item. */
export function startGrid(open) {
  rove(list, ".hit", () => getComputedStyle(list).gridTemplateColumns.split(" ").length);
  list.addEventListener("click", (event) => {
    const hit = event.target.closest(".hit");
    if (hit) open(hit.dataset.id);
  });
}

const COSINE = { word: "cosine", spoken: "cosine", title: "The cosine between the vectors of query and item: 1 is the same direction, 0 nothing in common." };
const PROBABILITY = { word: "prob.", spoken: "probability", title: "The probability that query and item are of one class, by the calibrations of the last check." };

/** Items as tiles, behind those that are there with `add`. Scores are cosines or, where `calibrated`, probabilities. */
export function showItems(items, { add = false, calibrated = false } = {}) {
  const tiles = items.map((item) => el("li", {}, tile(item, calibrated ? PROBABILITY : COSINE)));
  if (add && list.querySelector(".hit")) list.append(...tiles);
  else list.replaceChildren(...tiles);
  list.querySelectorAll(".hit").forEach((hit, row) => (hit.tabIndex = row ? -1 : 0));
  list.removeAttribute("aria-busy");
}

export function showWaiting(count) {
  list.setAttribute("aria-busy", "true");
  list.replaceChildren(...Array.from({ length: count }, () => el("li", { class: "waiting", "aria-hidden": "true" })));
}

/** Words in place of results: a bold line, then parts of a sentence. */
export function showEmpty(title, ...parts) {
  list.removeAttribute("aria-busy");
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
    picture(item.thumbnail),
    el(
      "span",
      { class: "facts" },
      el("span", { class: "label" }, label || "no label"),
      el("span", { class: "row" }, scored ? el("span", { class: "measure", title: scale.title }, el("span", { class: "score" }, item.score.toFixed(3)), " ", el("span", { class: "scale" }, scale.word)) : el("span", { class: "id" }, item.id), badge(item.version)),
      meter,
      scored && el("span", { class: "id" }, item.id),
    ),
    el("span", { class: "again", "aria-hidden": "true" }, "More like this"),
  );
}
