// The view that adds images: files and folders, chosen or dropped. A folder's name is the label. Jobs embed them.
import { call, may } from "./api.js";
import { byId, count, el, plural, renew } from "./dom.js";
import { cancelButton, isOpen, progressBar } from "./jobs.js";
import { announce, problemView } from "./problem.js";

const IMAGES = 100; // of one job, at most
const BYTES = 64e6;
const NAMED = 20; // images that could not be used
const EXTENSION = /\.(jpe?g|png|webp|avif|gif|bmp|tiff?)$/i;
let chosen = []; // { file, path }
let skipped = 0; // files that are not images
let sending = false;

export function startAdd() {
  for (const input of [byId("add-files"), byId("add-folder")]) {
    input.addEventListener("change", () => {
      choose([...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name })));
      input.value = "";
    });
  }
  byId("add-label").addEventListener("input", showChosen);
  byId("add-form").addEventListener("submit", (event) => (event.preventDefault(), addAll()));
  byId("add-clear").addEventListener("click", () => {
    [chosen, skipped] = [[], 0];
    showChosen();
    byId("add-files").focus();
  });
  showChosen();
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
  const images = files.filter(({ file }) => file.type.startsWith("image/") || EXTENSION.test(file.name));
  skipped += files.length - images.length;
  chosen = [...new Map([...chosen, ...images].map((one) => [one.path, one])).values()];
  showChosen();
}

/** As `fixstar index FOLDER` does it: the id is the path within the folder, the label is the folder that holds the image. */
function described({ path }) {
  const parts = path.split("/");
  const label = parts.length > 1 ? parts.at(-2) : byId("add-label").value.trim();
  const id = parts.length > 2 ? parts.slice(1).join("/") : parts.length > 1 || !label ? path : `${label}/${path}`;
  return { id, payload: label ? { label } : {} };
}

function showChosen() {
  const labels = new Map();
  for (const one of chosen) {
    const label = described(one).payload.label ?? "no label";
    labels.set(label, (labels.get(label) ?? 0) + 1);
  }
  renew(
    byId("add-chosen"),
    el("p", {}, chosen.length ? `${plural(chosen.length, "image")} chosen.` : "Nothing chosen yet.", skipped ? ` ${plural(skipped, "file")} left out: not an image.` : ""),
    el("ul", { class: "legend" }, [...labels].map(([label, number]) => el("li", {}, el("span", { class: "chip wrap" }, label), count(number)))),
  );
  byId("add-go").disabled = !chosen.length || sending || !may("write");
  byId("add-go").textContent = `Add ${plural(chosen.length, "image")}`;
  byId("add-clear").hidden = !chosen.length;
}

async function addAll() {
  const [rest, refused, jobs] = [[...chosen], [], []];
  sending = true;
  showChosen();
  try {
    while (rest.length) {
      const batch = rest.splice(0, 1);
      let bytes = batch[0].file.size;
      while (rest.length && batch.length < IMAGES && bytes + rest[0].file.size < BYTES) bytes += (batch.push(rest[0]), rest.shift().file.size);
      renew(byId("add-state"), el("p", { class: "note" }, `Sending … ${plural(rest.length + batch.length, "image")} left`));
      jobs.push(...(await send(batch, refused)));
    }
    [chosen, skipped] = [[], 0];
    await follow(jobs, refused);
  } catch (problem) {
    renew(byId("add-state"), problemView(problem, { small: true }));
    chosen = chosen.filter((one) => rest.includes(one)); // what was accepted is not sent again
  } finally {
    sending = false;
    showChosen();
  }
}

/** The jobs that store the images. One that is not an image fails the whole request, so halves are tried. */
async function send(batch, refused) {
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
    return [...(await send(batch.slice(0, middle), refused)), ...(await send(batch.slice(middle), refused))];
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
  const bad = [...refused, ...now.flatMap(({ result }) => result?.bad ?? [])];
  renew(
    byId("add-state"),
    el("p", {}, `${plural(added, "image")} added.`, bad.length ? ` ${plural(bad.length, "image")} could not be used:` : ""),
    el("ul", {}, bad.slice(0, NAMED).map(({ file, reason }) => el("li", { class: "wrap" }, `${file}: ${reason}`))),
    now.filter(({ error }) => error).map(({ error }) => problemView(error, { small: true })),
  );
  announce(`${plural(added, "image")} added.`);
}
