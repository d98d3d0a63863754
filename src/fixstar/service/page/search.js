// The search view: what is asked, and what was found.
import { address, call } from "./api.js";
import { byId, el } from "./dom.js";
import { plural } from "./format.js";
import { showEmpty, showItems, showWaiting, startGrid } from "./grid.js";
import { startIntake } from "./intake.js";
import { picture } from "./picture.js";
import { tellProblem } from "./problem.js";
import { badge } from "./tones.js";

const PAGE = 24; // items of the gallery at a time
let query = { kind: "none" }; // or { kind: "image", file, preview } or { kind: "like", id }
let image = null; // the image asked last: going back from "more like this" asks it again
let under = null; // the request under way
let after = null; // where the gallery goes on
const idle = { preview: byId("preview").firstElementChild, name: byId("query-name").textContent, note: byId("query-note").textContent };

export function startSearch() {
  startGrid(openLike);
  startIntake(useImage, (words) => tellProblem({ title: words, hint: "Choose a JPEG, PNG, WebP, GIF, BMP or TIFF file." }));
  byId("controls").addEventListener("submit", (event) => (event.preventDefault(), refresh()));
  byId("count").addEventListener("change", refresh);
  byId("label").addEventListener("change", refresh);
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

export function openLike(id) {
  location.hash = `#like=${encodeURIComponent(id)}`;
  window.scrollTo({ top: 0 });
}

function useImage(file) {
  if (image) URL.revokeObjectURL(image.preview);
  image = { file, preview: URL.createObjectURL(file) };
  if (location.hash === "#search") showRoute(null);
  else location.hash = "#search"; // the address change shows it
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
  const label = byId("label").value.trim();
  const where = label ? JSON.stringify({ label }) : null;
  if (query.kind === "like") return call(address("/v1/item/similar", { id: query.id, k, where }), { signal });
  const form = new FormData();
  form.append("image", query.file, query.file.name || "image");
  return call(address("/v1/search", { k, where }), { form, signal });
}

function present({ version, hits, milliseconds, left_out: unreached }) {
  const took = `${plural(hits.length, "result")} in ${Math.max(1, Math.round(milliseconds))} ms, query vector by `;
  byId("results-note").replaceChildren(took, badge(version), ...leftOut(unreached));
  offerLabels(hits);
  if (hits.length) showItems(hits);
  else if (byId("label").value.trim()) showEmpty("Nothing found with this label", "Take the label away, or write it as it was stored.");
  else showEmpty("Nothing found", "The gallery holds nothing else yet.");
}

/** Names the versions whose vectors the query does not reach, or says nothing. */
function leftOut(versions) {
  if (!versions.length) return [];
  return [" · not searched, their adapter is for another version: ", ...versions.flatMap((name) => [badge(name), " "])];
}

async function browse(add) {
  if (!add) {
    describe(idle.name, idle.note, idle.preview);
    byId("results-title").textContent = "From the gallery";
    byId("results-note").replaceChildren();
    showWaiting(12);
    after = null;
  }
  try {
    const page = await call(address("/v1/items", { after, limit: PAGE }), { signal: under?.signal });
    after = page.next;
    byId("more").hidden = after === null;
    offerLabels(page.items);
    if (add || page.items.length) {
      showItems(page.items, add);
      byId("results-note").replaceChildren(add ? `${plural(page.items.length, "item")} more` : "Pick one to see what is like it.");
    } else {
      showEmpty("The gallery is empty", "Fill it with ", el("code", {}, "fixstar index IMAGES"), " and come again.");
    }
  } catch (error) {
    if (error.name === "AbortError") return;
    showEmpty("The gallery cannot be shown", "The message above says what to do.");
    tellProblem(error, () => browse(add));
  }
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
