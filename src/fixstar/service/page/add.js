// The view that adds images or texts: files and folders, chosen or dropped. A folder's name is the label.
// Jobs embed images. Texts are embedded before the answer. One text may also be written here.
import { call, itemKind, may } from "./api.js";
import { byId, count, el, plural, renew } from "./dom.js";
import { cancelButton, isOpen, progressBar } from "./jobs.js";
import { announce, problemView } from "./problem.js";

const IMAGES = 100; // of one job, at most
const TEXTS = 64; // of one request, at most
const BYTES = 64e6;
const NAMED = 20; // images or texts that could not be used
const EXTENSION = { image: /\.(jpe?g|png|webp|avif|gif|bmp|tiff?)$/i, text: /\.(txt|md)$/i };
const NOT_OF = { image: "not an image", text: "not a .txt or .md file" };
let chosen = []; // { file, path }
let skipped = 0; // files of another kind
let sending = false;

export function startAdd() {
  for (const input of [byId("add-files"), byId("add-folder")]) {
    input.addEventListener("change", () => {
      choose([...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name })));
      input.value = "";
    });
  }
  byId("add-label").addEventListener("input", showChosen);
  byId("add-words").addEventListener("input", showChosen);
  byId("add-form").addEventListener("submit", (event) => (event.preventDefault(), addAll()));
  byId("add-clear").addEventListener("click", () => {
    [chosen, skipped] = [[], 0];
    byId("add-words").value = "";
    showChosen();
    byId("add-files").focus();
  });
  showChosen();
}

const ofTexts = () => itemKind() === "text";

/** The view's words and fields, once it is known whether the models read images or texts. */
export function fitAdd() {
  showChosen();
  if (!ofTexts()) return;
  byId("add-title").textContent = "Add texts";
  byId("add-how").textContent = "Write a text, or drop .txt and .md files or folders anywhere.";
  byId("add-note").textContent = "A file is one text. The folder that holds it is its label. A text with the id of a stored one replaces it.";
  byId("add-choose").textContent = "Choose files";
  byId("add-labelled").textContent = "Label of texts outside of folders";
  byId("add-files").accept = ".txt,.md";
  byId("add-passage").hidden = false;
}

/** What was dropped: files, and all that is in dropped folders. */
export async function addDropped({ items, files }) {
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean); // gone once the event is over
  if (entries.length) choose((await Promise.all(entries.map(walk))).flat());
  else choose([...files].map((file) => ({ file, path: file.name })));
}

async function walk(entry) {
  if (entry.isFile) return [{ file: await new Promise((resolve, reject) => entry.file(resolve, reject)), path: entry.fullPath.slice(1) }];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const some = await new Promise((resolve, reject) => reader.readEntries(resolve, reject)); // some at a time
    if (!some.length) return (await Promise.all(found.map(walk))).flat();
    found.push(...some);
  }
}

function choose(files) {
  const kind = itemKind();
  const fitting = files.filter(({ file }) => (kind === "image" && file.type.startsWith("image/")) || EXTENSION[kind].test(file.name));
  skipped += files.length - fitting.length;
  chosen = [...new Map([...chosen, ...fitting].map((one) => [one.path, one])).values()];
  showChosen();
}

/** As `fixstar index FOLDER` does it: the id is the path within the folder, the label is the folder that holds the image. */
function described({ path }) {
  const parts = path.split("/");
  const label = parts.length > 1 ? parts.at(-2) : byId("add-label").value.trim();
  const id = parts.length > 2 ? parts.slice(1).join("/") : parts.length > 1 || !label ? path : `${label}/${path}`;
  return { id, payload: label ? { label } : {} };
}

/** What was written, as a file without a path; null if nothing was. */
function written() {
  const words = byId("add-words").value.trim();
  return words ? { words, path: "" } : null;
}

/** All that is to be sent: files, and what was written. */
function toAdd() {
  const passage = written();
  return passage ? [...chosen, passage] : [...chosen];
}

function showChosen() {
  const labels = new Map();
  const kind = itemKind();
  const all = toAdd();
  for (const one of all) {
    const label = described(one).payload.label ?? "no label";
    labels.set(label, (labels.get(label) ?? 0) + 1);
  }
  renew(
    byId("add-chosen"),
    el("p", {}, all.length ? `${plural(all.length, kind)} chosen.` : "Nothing chosen yet.", skipped ? ` ${plural(skipped, "file")} left out: ${NOT_OF[kind]}.` : ""),
    el("ul", { class: "legend" }, [...labels].map(([label, number]) => el("li", {}, el("span", { class: "chip wrap" }, label), count(number)))),
  );
  byId("add-go").disabled = !all.length || sending || !may("write");
  byId("add-go").textContent = `Add ${plural(all.length, kind)}`;
  byId("add-clear").hidden = !all.length;
}

async function addAll() {
  const rest = toAdd();
  const refused = [];
  const jobs = [];
  sending = true;
  showChosen();
  try {
    while (rest.length) {
      const batch = nextBatch(rest);
      renew(byId("add-state"), el("p", { class: "note" }, `Sending … ${plural(rest.length, itemKind())} left`));
      jobs.push(...(await send(batch, refused)));
      accepted(batch);
      rest.splice(0, batch.length);
    }
    skipped = 0;
    await follow(jobs, refused);
  } catch (problem) {
    renew(byId("add-state"), problemView(problem, { small: true }));
  } finally {
    sending = false;
    showChosen();
  }
}

/** The first of the rest that fit into one request. */
function nextBatch(rest) {
  const most = ofTexts() ? TEXTS : IMAGES;
  const batch = [];
  let bytes = 0;
  for (const one of rest) {
    bytes += one.file?.size ?? 0;
    if (batch.length && (batch.length === most || bytes >= BYTES)) break;
    batch.push(one);
  }
  return batch;
}

/** What was accepted is not sent again. */
function accepted(batch) {
  chosen = chosen.filter((one) => !batch.includes(one));
  if (batch.some(({ words }) => words)) byId("add-words").value = "";
}

const send = (batch, refused) => (ofTexts() ? sendTexts(batch, refused) : sendImages(batch, refused));

/** Stores texts, and says so as a finished job does. What is not UTF-8 is not sent. */
async function sendTexts(batch, refused) {
  const items = [];
  for (const one of batch) {
    const { id, payload } = described(one);
    try {
      const text = one.words ?? new TextDecoder("utf-8", { fatal: true }).decode(await one.file.arrayBuffer());
      items.push({ id: one.words ? null : id, text, payload });
    } catch {
      refused.push({ file: one.path, reason: "it is not UTF-8 text" });
    }
  }
  if (!items.length) return [];
  try {
    const { added, bad } = await call("/v1/items/texts", { json: { items } });
    return [{ state: "succeeded", result: { added: added.length, bad } }];
  } catch (problem) {
    if (!problem.bad?.length) throw problem;
    refused.push(...problem.bad);
    return [];
  }
}

/** The jobs that store the images. One that is not an image fails the whole request, so halves are tried. */
async function sendImages(batch, refused) {
  const form = new FormData();
  const items = batch.map(described);
  for (const { file } of batch) form.append("images", file, file.name);
  form.append("ids", JSON.stringify(items.map(({ id }) => id)));
  form.append("payloads", JSON.stringify(items.map(({ payload }) => payload)));
  try {
    return [await call("/v1/items/async", { form })];
  } catch (problem) {
    if (![413, 415, 422].includes(problem.status)) throw problem;
    if (batch.length === 1) return refused.push({ file: batch[0].path, reason: problem.detail }), [];
    const middle = Math.ceil(batch.length / 2);
    return [...(await sendImages(batch.slice(0, middle), refused)), ...(await sendImages(batch.slice(middle), refused))];
  }
}

async function follow(jobs, refused) {
  let now = jobs;
  for (;;) {
    renew(byId("add-state"), now.filter(isOpen).map((job) => el("div", { class: "job" }, progressBar(job), cancelButton(job, () => {}))));
    if (!now.some(isOpen)) break;
    await new Promise((resolve) => setTimeout(resolve, 700));
    now = await Promise.all(now.map((job) => (isOpen(job) ? call(`/v1/jobs/${encodeURIComponent(job.id)}`) : job)));
  }
  const added = now.reduce((sum, { result }) => sum + (result?.added ?? 0), 0);
  const kind = itemKind();
  const bad = [...refused, ...now.flatMap(({ result }) => result?.bad ?? [])];
  renew(
    byId("add-state"),
    el("p", {}, `${plural(added, kind)} added.`, bad.length ? ` ${plural(bad.length, kind)} could not be used:` : ""),
    el("ul", {}, bad.slice(0, NAMED).map(({ file, reason }) => el("li", { class: "wrap" }, `${file}: ${reason}`))),
    now.filter(({ error }) => error).map(({ error }) => problemView(error, { small: true })),
  );
  announce(`${plural(added, kind)} added.`);
}
