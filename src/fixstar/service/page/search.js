// The search view: what is asked, and what was found.
import { address, call } from "./api.js";
import { badge, byId, count, el, plural, rove, tone } from "./dom.js";
import { picture } from "./picture.js";
import { tellProblem } from "./problem.js";

const PAGES = 10; // of the gallery that are looked through at a time for items with a label
let query = { kind: "none" }; // or { kind: "image", file, preview } or { kind: "like", id }
let image = null; // the image asked last: going back from "more like this" asks it again
let under = null; // the request under way
let after = null; // where the next page of the gallery starts
let due = 0; // the timer of a refresh
const UNLABELLED = ["Nothing found with this label", "Take the label away, or write it as it was stored."];
const idle = { preview: byId("preview").firstElementChild, name: byId("query-name").textContent, note: byId("query-note").textContent };

export function startSearch() {
  startGrid(openLike);
  startIntake(useImage, (words) => tellProblem({ title: words, hint: "Choose a JPEG, PNG, WebP, AVIF, GIF, BMP or TIFF file." }));
  byId("controls").addEventListener("submit", (event) => (event.preventDefault(), refreshSoon()));
  byId("count").addEventListener("change", refreshSoon);
  byId("label").addEventListener("change", refreshSoon);
  byId("more").addEventListener("click", () => browse(true));
  byId("clear").addEventListener("click", () => {
    image = null;
    if (location.hash === "#search") showRoute(null);
    else location.hash = "#search";
    byId("file").focus();
  });
}

/** Shows what the address asks for: more like an item, or the last image, or the gallery. */
export function showRoute(id) {
  if (id !== null) query = { kind: "like", id };
  else query = image ? { kind: "image", ...image } : { kind: "none" };
  refresh();
}

function openLike(id) {
  location.hash = `#like=${encodeURIComponent(id)}`;
  window.scrollTo({ top: 0 });
}

function useImage(file) {
  if (image) URL.revokeObjectURL(image.preview);
  image = { file, preview: URL.createObjectURL(file) };
  if (location.hash === "#search") showRoute(null);
  else location.hash = "#search"; // the address change shows it
}

/** Once, where Enter in the label is both a change and a submission. */
function refreshSoon() {
  clearTimeout(due);
  due = setTimeout(refresh, 0);
}

async function refresh() {
  under?.abort();
  under = new AbortController();
  tellProblem(null);
  byId("more").hidden = true;
  byId("clear").hidden = query.kind === "none";
  if (query.kind === "none") return browse(false);
  const asked = Number(byId("count").value);
  byId("results-title").textContent = "Results";
  byId("results-note").replaceChildren("Searching …");
  showWaiting(Math.min(asked, 12));
  const { signal } = under;
  try {
    if (query.kind === "image") describe(query.file.name || "Pasted image", "Used as the query; it is not stored.", previewOf(query.preview));
    else await describeItem(query.id, signal);
    const answer = await ask(asked, signal);
    present(answer);
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("results-note").replaceChildren("The search failed.");
    showEmpty("No results", "The message above says what to do.");
    tellProblem(error, refresh);
  }
}

function ask(k, signal) {
  const where = labelled();
  if (query.kind === "like") return call(address("/v1/item/similar", { id: query.id, k, where }), { signal });
  const form = new FormData();
  form.append("image", query.file, query.file.name || "image");
  return call(address("/v1/search", { k, where }), { form, signal });
}

/** The label as a filter, or null. */
function labelled() {
  const label = byId("label").value.trim();
  return label ? JSON.stringify({ label }) : null;
}

function present({ version, hits, milliseconds, calibrated, left_out: unreached }) {
  const scores = calibrated ? "scores are relative to other classes of the gallery" : "scores are cosines";
  const took = `${plural(hits.length, "result")} in ${Math.max(1, Math.round(milliseconds))} ms, ${scores}, query vector by `;
  byId("results-note").replaceChildren(took, badge(version), ...leftOut(unreached));
  offerLabels(hits);
  if (hits.length) showItems(hits, { calibrated });
  else if (labelled()) showEmpty(...UNLABELLED);
  else showEmpty("Nothing found", "The gallery holds nothing else yet.");
}

/** Names the versions whose vectors the query does not reach, or says nothing. */
function leftOut(versions) {
  if (!versions.length) return [];
  return [" · not searched, no adapter connects them with it: ", ...versions.flatMap((name) => [badge(name), " "])];
}

async function browse(add) {
  const { signal } = under;
  const [limit, where] = [Number(byId("count").value), labelled()];
  if (!add) {
    describe(idle.name, idle.note, idle.preview);
    byId("results-title").textContent = "From the gallery";
    byId("results-note").replaceChildren();
    showWaiting(Math.min(limit, 12));
    after = null;
  }
  try {
    const { items, looked } = await gather(limit, where, signal);
    byId("more").hidden = after === null;
    offerLabels(items);
    if (items.length) {
      showItems(items, { add });
      byId("results-note").replaceChildren(add ? `${plural(items.length, "item")} more` : "Pick one to see what is like it.");
    } else if (after !== null) {
      if (!add) showEmpty("Nothing found with this label so far", "There is more in the gallery: show more, or write the label as it was stored.");
      byId("results-note").replaceChildren(`None among the ${add ? "next" : "first"} ${count(looked)} items`);
    } else if (add) {
      byId("results-note").replaceChildren("That was all.");
    } else if (where) showEmpty(...UNLABELLED);
    else showEmpty("The gallery is empty", "Fill it with ", el("code", {}, "fixstar index IMAGES"), " and reload.");
  } catch (error) {
    if (error.name === "AbortError") return;
    showEmpty("The gallery cannot be shown", "The message above says what to do.");
    tellProblem(error, () => browse(add));
  }
}

/** The next items of the gallery. With a label a page may hold few or none, and the following ones are asked for too. */
async function gather(limit, where, signal) {
  const items = [];
  let [next, looked] = [after, 0];
  for (let page = 0; page < PAGES && items.length < limit && (page === 0 || next !== null); page++) {
    const answer = await call(address("/v1/items", { after: next, limit: limit - items.length, where }), { signal });
    items.push(...answer.items);
    looked += answer.looked_at;
    next = answer.next;
  }
  after = next; // only now: what was aborted has shown nothing
  return { items, looked };
}

async function describeItem(id, signal) {
  describe(id, "More like this item.", null);
  const item = await call(address("/v1/item", { id }), { signal });
  describe(item.label ? `${item.label}` : id, "", picture(item.thumbnail, ""));
  byId("query-note").replaceChildren("More like ", el("span", { class: "wrap" }, id), ", a vector of ", badge(item.version));
}

function describe(name, note, shown) {
  byId("query-name").textContent = name;
  byId("query-note").textContent = note;
  byId("preview").classList.toggle("filled", shown !== idle.preview);
  byId("preview").replaceChildren(...(shown ? [shown] : []));
}

function previewOf(url) {
  const shown = el("img", { src: url, alt: "" });
  shown.addEventListener("error", () => shown.replaceWith("no preview")); // browsers do not show TIFF
  return shown;
}

function offerLabels(items) {
  const known = new Set([...byId("labels").options].map((option) => option.value));
  const fresh = new Set(items.map((item) => item.label).filter((label) => label && !known.has(label)));
  byId("labels").append(...[...fresh].slice(0, Math.max(0, 500 - known.size)).map((value) => el("option", { value })));
}

// --- Items as a grid of buttons: one press is "more like this", arrows move.

const list = byId("results");

/** Begins to listen; `open(id)` shows more like an item. */
function startGrid(open) {
  rove(list, ".hit", () => getComputedStyle(list).gridTemplateColumns.split(" ").length);
  list.addEventListener("click", (event) => {
    const hit = event.target.closest(".hit");
    if (hit) open(hit.dataset.id);
  });
}

const COSINE = { word: "cosine", spoken: "cosine", title: "The cosine between the vectors of query and item: 1 is the same direction, 0 nothing in common." };
const RELATIVE = { word: "relative", spoken: "relative score", title: "How much likelier the query and the item are of one class than of two, if the gallery holds the query's class. It does not say whether it does." };

/** Items as tiles, behind those that are there with `add`. Scores are cosines or, where `calibrated`, relative scores. */
function showItems(items, { add = false, calibrated = false } = {}) {
  const tiles = items.map((item) => el("li", {}, tile(item, calibrated ? RELATIVE : COSINE)));
  if (add && list.querySelector(".hit")) list.append(...tiles);
  else list.replaceChildren(...tiles);
  list.querySelectorAll(".hit").forEach((hit, row) => (hit.tabIndex = row ? -1 : 0));
  list.removeAttribute("aria-busy");
}

function showWaiting(count) {
  list.setAttribute("aria-busy", "true");
  list.replaceChildren(...Array.from({ length: count }, () => el("li", { class: "waiting", "aria-hidden": "true" })));
}

/** Words in place of results: a bold line, then parts of a sentence. */
function showEmpty(title, ...parts) {
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

// --- Images from the visitor: dropped anywhere, pasted anywhere, chosen, or taken with the camera.

/** Calls `use(file)` with each image, `refuse(words)` with anything else. */
function startIntake(use, refuse) {
  const take = (files) => {
    const file = [...(files ?? [])].find((one) => one.type.startsWith("image/") || one.type === "");
    if (file) use(file);
    else if (files?.length) refuse(`${files[0].name || "This"} is not an image`);
  };
  for (const input of [byId("file"), byId("camera")]) {
    input.addEventListener("change", () => {
      take(input.files);
      input.value = ""; // the same file may be chosen again
    });
  }
  document.addEventListener("paste", (event) => {
    if (!event.clipboardData?.files.length) return; // text goes where the caret is
    event.preventDefault();
    take(event.clipboardData.files);
  });
  startDrop(take);
}

function startDrop(take) {
  const veil = byId("veil");
  let depth = 0; // dragenter and dragleave come for every element on the way
  const withFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const show = (shown) => veil.classList.toggle("shown", shown);
  document.addEventListener("dragenter", (event) => withFiles(event) && show(++depth > 0));
  document.addEventListener("dragleave", (event) => withFiles(event) && show(--depth > 0));
  document.addEventListener("dragover", (event) => withFiles(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!withFiles(event)) return;
    event.preventDefault();
    show(((depth = 0), false));
    take(event.dataTransfer.files);
  });
}
