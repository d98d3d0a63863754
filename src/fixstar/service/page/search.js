// The search view: what is asked, and what was found.
import { addDropped } from "./add.js";
import { address, call, fetchBlob, itemKind, latestStatus } from "./api.js";
import { choosePart } from "./crop.js";
import { badge, byId, count, el, plural } from "./dom.js";
import { openItem } from "./item.js";
import { picture, shownItem } from "./picture.js";
import { announce, tellProblem } from "./problem.js";
import { isShown, scaleOf, showCompared, showEmpty, showItems, showWaiting, startResults } from "./results.js";

const UNKNOWN_FORMAT = "/problems/unknown-format";
const LABELS = 500; // that are suggested
const PAGES = 10; // of the gallery that are looked through at a time for items with a label
let query = { kind: "none" }; // or { kind: "image", file, preview }, { kind: "text", text } or { kind: "like", id }
let image = null; // the image asked last: going back from "more like this" asks it again
let text = null; // the same for a text
let examples = []; // further ones: { side: "positive" or "negative", name, and id or url (a data URL) }
let under = null; // the request under way
let after = null; // where the next page of the gallery starts
let more = false; // whether there is one
let due = 0; // the timer of a refresh
const UNLABELLED = ["Nothing found with this label", "Take the label away, or write it as it was stored."];
const idle = { preview: byId("preview").firstElementChild, name: byId("query-name").textContent, note: byId("query-note").textContent };

export function startSearch() {
  startResults({ like: openLike, details });
  startIntake(useImage, refuse);
  byId("unfold").addEventListener("click", () => fold(!byId("query").classList.contains("folded")));
  byId("controls").addEventListener("submit", (event) => (event.preventDefault(), refreshSoon()));
  byId("count").addEventListener("change", refreshSoon);
  byId("label").addEventListener("change", refreshSoon);
  for (const place of ["label", "add-label"]) byId(place).addEventListener("focus", offerLabels);
  for (const [input, side] of [["more-like", "positive"], ["less-like", "negative"]]) {
    byId(input).addEventListener("change", () => addFiles(side, [...byId(input).files]).then(() => (byId(input).value = "")));
  }
  byId("part").addEventListener("click", searchPart);
  byId("against").addEventListener("change", refreshSoon);
  byId("more").addEventListener("click", () => browse(true));
  byId("words-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useText(byId("words").value.trim());
  });
  byId("clear").addEventListener("click", () => {
    image = null;
    text = null;
    examples = [];
    byId("words").value = "";
    if (location.hash === "#search") showRoute(null);
    else location.hash = "#search";
    focusQuery();
  });
}

const readsTexts = () => latestStatus()?.reads === "texts";

/** Where a query is given: the text box, or the button that chooses a file. */
export function focusQuery() {
  byId(readsTexts() ? "words" : "file").focus();
}

/** What only images need is hidden where the models read texts, and the other way round. */
function fitToKind() {
  const texts = readsTexts();
  document.body.classList.toggle("texts", texts);
  byId("words-form").hidden = !texts;
  if (!texts) return;
  byId("search-title").textContent = "Search by text";
  idle.name = "Write what you look for.";
  idle.note = "A question, or a few words.";
}

/** Searches with a text, whatever was asked before; without one the gallery is shown. */
function useText(words) {
  examples = [];
  text = words ? { text: words } : null;
  if (location.hash === "#search") showRoute(null);
  else location.hash = "#search"; // the address change shows it
}

/** Shows what the address asks for: more like an item, or the last image, or the gallery. */
export function showRoute(id) {
  if (id !== null && id !== query.id) examples = [];
  if (id !== null) query = { kind: "like", id };
  else if (text) query = { kind: "text", ...text };
  else query = image ? { kind: "image", ...image } : { kind: "none" };
  fitToKind();
  offerVersions();
  refresh();
}

/** The versions whose answers can be put beside those of the deployed one. */
function offerVersions() {
  const { versions = [], deployed = null } = latestStatus() ?? {};
  const others = versions.filter((name) => name !== deployed);
  const before = byId("against").value;
  byId("against").replaceChildren(el("option", { value: "" }, "nothing"), ...others.map((name) => el("option", { value: name, selected: name === before }, name)));
  byId("against-label").hidden = query.kind === "none" || !others.length;
}

function openLike(id) {
  location.hash = `#like=${encodeURIComponent(id)}`;
  window.scrollTo({ top: 0 });
}

/** One message for a file that cannot be used; what was shown before stays. */
function refuse(name, empty = false) {
  tellProblem({ title: empty ? `${name} is empty: it has no bytes` : `${name} cannot be used for a search`, hint: `Choose a file of one of these formats: ${idle.note}` });
}

/** The item view, with the query beside it where there is one. */
function details(item, scale) {
  const asked = query.kind === "image" ? previewOf(query.preview) : query.kind === "text" ? el("span", { class: "passage" }, query.text) : (query.picture ?? null);
  const removed = () => {
    announce(`${item.id} was deleted.`);
    if (query.kind === "like" && query.id === item.id) location.hash = "#search";
    else refresh();
  };
  const itself = query.kind === "like" && query.id === item.id;
  const example = (side, { id, label, thumbnail }) => addExamples({ side, id, name: label ?? id, url: thumbnail });
  openItem(item, { asked: itself ? null : asked, scale, like: openLike, removed, example: ["none", "text"].includes(query.kind) || itself ? null : example });
}

/** On a phone the query takes little room once it was asked, so that results come first. */
function fold(folded) {
  byId("query").classList.toggle("folded", folded);
  byId("unfold").setAttribute("aria-expanded", String(!folded));
  byId("unfold").textContent = folded ? "Change" : "Less";
}

/** Searches with an image, whatever was asked before. */
export function useImage(file) {
  if (image) URL.revokeObjectURL(image.preview);
  examples = [];
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
  byId("part").hidden = query.kind === "none" || readsTexts();
  showExamples();
  byId("query").classList.toggle("asked", query.kind !== "none");
  fold(query.kind !== "none");
  if (query.kind === "none") return browse(false);
  const asked = Number(byId("count").value);
  byId("results-title").textContent = "Results";
  byId("results-note").replaceChildren("Searching …");
  showWaiting(Math.min(asked, 12));
  byId("choose").classList.add("busy");
  const { signal } = under;
  try {
    if (query.kind === "text") describe(query.text, "Used as the query; it is not stored.", null);
    else if (query.kind === "image") describe(query.file.name || "Pasted image", "Used as the query; it is not stored.", previewOf(query.preview));
    else await describeItem(query.id, signal);
    const against = byId("against").value;
    const what = await whatIsAsked();
    if (against && what && !examples.length) presentBoth(await Promise.all([null, against].map((version) => searchWith(what, asked, version, signal))));
    else present(await ask(asked, signal));
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error.type === UNKNOWN_FORMAT && query.kind === "image") return withdraw();
    byId("results-note").replaceChildren("The search failed.");
    showEmpty("No results", "The message above says what to do.");
    tellProblem(error, refresh);
  } finally {
    if (!signal.aborted) byId("choose").classList.remove("busy");
  }
}

/** The image that cannot be read is taken back: the gallery is shown, and one message. */
async function withdraw() {
  const { name, size } = image.file;
  image = null;
  query = { kind: "none" };
  await refresh();
  refuse(name || "This image", !size);
}

function ask(k, signal) {
  const where = labelled();
  if (examples.length) return askExamples(k, where, signal);
  if (query.kind === "like") return call(address("/v1/item/similar", { id: query.id, k, where }), { signal });
  return searchWith(query.kind === "text" ? query.text : query.file, k, null, signal);
}

async function askExamples(k, where, signal) {
  const main = query.kind === "like" ? { side: "positive", id: query.id } : { side: "positive", url: await dataUrl(query.file) };
  const sides = { positive: { ids: [], images: [] }, negative: { ids: [], images: [] } };
  for (const { side, id, url } of [main, ...examples]) id === undefined ? sides[side].images.push(url) : sides[side].ids.push(id);
  return call("/v1/search/examples", { json: { ...sides, k, where: where && JSON.parse(where) }, signal });
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.replace(/^data:[^,]*,/, "data:image/png;base64,")); // the service looks at the content
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

async function addFiles(side, files) {
  addExamples(...(await Promise.all(files.map(async (file) => ({ side, name: file.name || "image", url: await dataUrl(file) })))));
}

function addExamples(...more) {
  const isKnown = ({ id }) => id !== undefined && examples.some((one) => one.id === id);
  examples.push(...more.filter((one) => !isKnown(one)));
  refresh();
}

/** The further examples, each with a button that takes it away. */
function showExamples() {
  byId("example-part").hidden = query.kind === "none" || query.kind === "text";
  const line = (example) => {
    const [sign, words] = example.side === "positive" ? ["+", "like"] : ["−", "not like"];
    const remove = () => {
      examples = examples.filter((one) => one !== example);
      refresh();
      byId("more-like").focus();
    };
    return el("li", { class: example.side }, picture(example.url, `${words} ${example.name}`), el("span", { "aria-hidden": "true" }, sign), el("button", { type: "button", class: "icon", "aria-label": `Take away the example: ${words} ${example.name}`, on: { click: remove } }, el("span", { "aria-hidden": "true" }, "✕")));
  };
  byId("examples").replaceChildren(...examples.map(line));
}

/** A part of the query picture becomes the query. */
async function searchPart() {
  try {
    const whole = query.kind === "image" ? query.file : await fetchBlob(query.item.thumbnail.replace("size=256", "size=1024"));
    const url = URL.createObjectURL(whole);
    const part = await choosePart(url).finally(() => URL.revokeObjectURL(url));
    if (part) useImage(new File([part], `part of ${query.kind === "image" ? query.file.name || "the image" : query.id}`, { type: "image/png" }));
  } catch {
    tellProblem({ title: "This picture cannot be cut here", hint: "The browser does not show it. Search with all of it." });
  }
}

/** The items nearest to an image or a text, as a version embeds it; the deployed one where that is null. */
function searchWith(what, k, version, signal) {
  const form = new FormData();
  if (typeof what === "string") form.append("text", what);
  else form.append("image", what, what.name || "image");
  return call(address("/v1/search", { k, where: labelled(), version }), { form, signal });
}

/** The image or text that is asked about, where another version is to embed it too; null where the item has none. */
async function whatIsAsked() {
  if (query.kind === "image") return query.file;
  if (query.kind === "text") return query.text;
  if (readsTexts()) return query.item?.payload?.text ?? null;
  const url = byId("against").value && query.item?.thumbnail;
  return url ? fetchBlob(url.replace("size=256", "size=1024")) : null;
}

/** The label as a filter, or null. */
function labelled() {
  const label = byId("label").value.trim();
  return label ? JSON.stringify({ label }) : null;
}

function present(answer) {
  const { hits, milliseconds, models, left_out: unsearched, thresholds } = answer;
  const scale = scaleOf(answer);
  const unmeasured = examples.length || Object.keys(thresholds).length ? "" : " (run a check to learn which scores mean no match)";
  const took = `${plural(hits.length, "result")} in ${Math.max(1, Math.round(milliseconds))} ms, ${scale.note}${unmeasured}, query vector by `;
  byId("results-note").replaceChildren(took, ...models.flatMap((name, place) => [place ? " and " : "", badge(name)]), ...leftOut(unsearched));
  if (hits.length) showItems(hits, { scale });
  else if (labelled()) showEmpty(...UNLABELLED);
  else showEmpty("Nothing found", "The gallery holds nothing else yet.");
}

function presentBoth(answers) {
  const [old, other] = answers.map(({ hits }) => hits.map(({ id }) => id));
  const shared = other.filter((id) => old.includes(id)).length;
  byId("results-note").replaceChildren("The same query by ", badge(answers[0].version), ", which is deployed, and by ", badge(answers[1].version), `: ${shared} of ${plural(other.length, "result")} ${shared === 1 ? "is" : "are"} the same.`);
  showCompared(answers);
}

/** Names the versions whose vectors the query does not reach, or says nothing. */
function leftOut(versions) {
  if (!versions.length) return [];
  return [" · not searched, nothing connects them with it: ", ...versions.flatMap((name) => [badge(name), " "])];
}

async function browse(add) {
  const { signal } = under;
  const [limit, where] = [Number(byId("count").value), labelled()];
  if (!add) {
    describe(idle.name, idle.note, idle.preview);
    byId("results-title").textContent = "From the gallery";
    byId("results-note").replaceChildren();
    showWaiting(Math.min(limit, 12));
    [after, more] = [null, false];
  }
  try {
    const { items, looked } = add || where ? await gather(limit, where, signal) : await sample(limit, signal);
    byId("more").hidden = !more;
    if (items.length) {
      showItems(items, { add });
      byId("results-note").replaceChildren(add ? `${plural(items.length, "item")} more` : "Pick one to see what is like it.");
    } else if (more) {
      if (!add) showEmpty("Nothing found with this label so far", "There is more in the gallery: show more, or write the label as it was stored.");
      byId("results-note").replaceChildren(`None among the ${add ? "next" : "first"} ${count(looked)} items`);
    } else if (add) {
      byId("results-note").replaceChildren("That was all.");
    } else if (where) showEmpty(...UNLABELLED);
    else showEmpty("The gallery is empty", "Fill it with ", el("code", {}, readsTexts() ? "fixstar index TEXTS" : "fixstar index IMAGES"), " and reload.");
  } catch (error) {
    if (error.name === "AbortError") return;
    showEmpty("The gallery cannot be shown", "The message above says what to do.");
    tellProblem(error, () => browse(add));
  }
}

/** Some items of as many labels as possible; the list of all follows when more is asked for. */
async function sample(limit, signal) {
  const items = await call(address("/v1/items/sample", { limit }), { signal });
  more = items.length < (latestStatus()?.items ?? 0);
  return { items, looked: items.length };
}

/** The next items of the gallery, less those of the sample. With a label a page may hold few or none, and the following ones are asked for too. */
async function gather(limit, where, signal) {
  const items = [];
  let [next, looked] = [after, 0];
  for (let page = 0; page < PAGES && items.length < limit && (page === 0 || next !== null); page++) {
    const answer = await call(address("/v1/items", { after: next, limit: limit - items.length, where }), { signal });
    items.push(...answer.items.filter(({ id }) => where || !isShown(id)));
    looked += answer.looked_at;
    next = answer.next;
  }
  after = next; // only now: what was aborted has shown nothing
  more = next !== null;
  return { items, looked };
}

async function describeItem(id, signal) {
  describe(id, "More like this item.", null);
  const item = await call(address("/v1/item", { id }), { signal });
  query.picture = (item.thumbnail || readsTexts()) && shownItem(item);
  query.item = item;
  describe(item.label ? `${item.label}` : id, "", shownItem(item));
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

/** Suggests the labels of the gallery, most frequent first, with how many items have each. */
async function offerLabels() {
  try {
    const { values, next } = await call(address("/v1/items/count", { field: "label" }));
    const items = (number) => `${next === null ? "" : "at least "}${plural(number, "item")}`;
    byId("labels").replaceChildren(...Object.entries(values).slice(0, LABELS).map(([value, number]) => el("option", { value, label: items(number) })));
  } catch {
    // suggestions are a convenience: what is typed is searched without them
  }
}

// --- Images from the visitor: dropped anywhere, pasted anywhere, chosen, or taken with the camera.

/** Calls `use(file)` with each image, `refuse(name)` with anything else. */
function startIntake(use, refuse) {
  const take = (files) => {
    const file = [...(files ?? [])].find((one) => one.type.startsWith("image/") || one.type === "");
    if (file) use(file);
    else if (files?.length) refuse(files[0].name || "This");
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
  const adding = () => !byId("add-view").hidden;
  const show = (shown) => {
    byId("veil-words").textContent = adding() ? `Drop ${itemKind()}s or folders to add them` : "Drop the image to search with it";
    veil.classList.toggle("shown", shown);
  };
  document.addEventListener("dragenter", (event) => withFiles(event) && show(++depth > 0));
  document.addEventListener("dragleave", (event) => withFiles(event) && show(--depth > 0));
  document.addEventListener("dragover", (event) => withFiles(event) && event.preventDefault());
  document.addEventListener("drop", (event) => {
    if (!withFiles(event)) return;
    event.preventDefault();
    show(((depth = 0), false));
    if (adding()) addDropped(event.dataTransfer);
    else take(event.dataTransfer.files);
  });
}
