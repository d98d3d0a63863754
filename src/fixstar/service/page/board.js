// The upgrade board: loads what its panels show, and looks again while jobs run.
import { call, itemKind, may, status, versionPath } from "./api.js";
import { askBackfill, showBackfill, startBackfill } from "./backfill.js";
import { badge, byId, count, el, percent, plural, rememberVersions, renew, tone, unfold, when } from "./dom.js";
import { showDrift } from "./drift.js";
import { showHistory } from "./history.js";
import { isOpen, JobWatch, markBusy, showJobBar, showJobs, showOnButtons } from "./jobs.js";
import { announce, confirm, onStep, problemView, tellProblem } from "./problem.js";
import { showUpgrade } from "./upgrade.js";
import { showLineage, showMatrix } from "./versions.js";

const SELDOM = 3; // of the looks at a running backfill, every third also counts the vectors
const watch = new JobWatch(onLook, onEnd);
let now = null; // the last status
let known = []; // all versions
let jobs = []; // at the last look
const backfilling = () => jobs.some((job) => job.kind === "backfill" && isOpen(job));

export function showBoard() {
  refresh();
  watch.start();
}

export function hideBoard() {
  watch.stop();
}

const actions = {
  check: (version, rules) => acted(() => runCheck(version, rules)).finally(() => showOnButtons(jobs)),
  deploy: (version, queries) => acted(() => deploy(version, now, backfilling(), refresh, queries)),
  rollBack: () => acted(() => rollBack(now, refresh)),
  upgrade: () => acted(() => upgrade(known.filter(({ retired }) => !retired).at(-1).name)),
};

onStep({
  backfill: askBackfill,
  check: ({ version, ...rules }) => actions.check(version, rules),
  deploy: ({ version, queries }) => actions.deploy(known.find(({ name }) => name === version), queries),
  rollback: actions.rollBack,
});

startBackfill(async () => {
  watch.poke();
  await panel("backfill", "/v1/backfill", (state) => showBackfill(state, now));
  keepFocus("backfill");
});

async function acted(action) {
  try {
    const done = await action();
    if (!done) return keepFocus("overview");
    announce(done);
    watch.poke();
    await refresh();
    keepFocus("overview");
  } catch (error) {
    tellProblem(error);
  }
}

/** The button that was pressed may be gone: then a place has the focus. */
function keepFocus(place) {
  if (document.activeElement !== document.body) return;
  unfold(byId(place));
  byId(place).focus();
}

async function refresh() {
  try {
    now = await status();
  } catch (error) {
    return tellProblem(error, refresh);
  }
  rememberVersions([...now.versions, ...now.retired]);
  showOverview(now, actions);
  await Promise.all([
    panel("lineage", "/v1/versions", (versions) => {
      known = versions;
      showLineage(versions, actions);
      renew(byId("upgrade"), versions.length && may("admin") ? el("button", { type: "button", data: { focus: "train", job: "upgrade" }, on: { click: actions.upgrade } }, "Train an upgrade …") : null);
      showUpgrade(versions, now);
      showDrift(versions, now);
    }),
    panel("matrix", "/v1/compatibility", showMatrix),
    panel("deployments", "/v1/deployments", showDeployments),
    panel("history", "/v1/history", showHistory),
    panel("backfill", "/v1/backfill", (state) => showBackfill(state, now)),
    panel("jobs", "/v1/jobs", tellJobs),
  ]);
  showOnButtons(jobs);
}

function tellJobs(found) {
  jobs = found;
  const changed = () => watch.poke();
  showJobs(jobs, changed);
  showJobBar(jobs, changed);
  showOnButtons(jobs);
}

/** Loads one panel; if that fails the others are still shown. */
async function panel(place, path, show) {
  try {
    show(await call(path));
  } catch (error) {
    renew(byId(place), problemView(error, { retry: () => panel(place, path, show), small: true }));
  }
}

async function onLook(found, look) {
  tellJobs(found);
  if (!jobs.some((job) => job.kind === "backfill" && job.state === "running")) return;
  showBackfill(await call("/v1/backfill"), now);
  if (look % SELDOM) return;
  now = await status();
  showOverview(now, actions);
  showHistory(await call("/v1/history"));
}

function onEnd(job) {
  announce(`The ${job.kind} job ended: ${job.state}.`);
  refresh();
}

// --- Where the workspace stands: what answers, and whose vectors are searched.

function showOverview(status, actions) {
  const held = Object.entries(status.vectors).filter(([, number]) => number > 0);
  const bar = el("div", { class: "sharebar", "aria-hidden": "true" }, held.map(([name]) => el("i", { class: tone(name) })));
  held.forEach(([, number], row) => bar.children[row].style.setProperty("flex-grow", number));
  const encoder = (name) => (status.versions.includes(name) ? "" : ", no encoder");
  const legend = held.map(([name, number]) => el("li", {}, badge(name), ` ${count(number)} (${percent(number / status.items, 0)}${encoder(name)})`));
  renew(
    byId("overview"),
    el(
      "div",
      { class: "answering" },
      el("p", { class: "note" }, "Queries are answered by"),
      el("p", { class: "deployed" }, status.deployed ? badge(status.deployed) : "no version yet"),
      ...askedBy(status).map((words) => el("p", { class: "note" }, words)),
      status.previous && el("p", { class: "note" }, "before: ", badge(status.previous)),
      status.previous && may("admin") && el("button", { type: "button", id: "roll-back", data: { focus: "roll-back" }, on: { click: actions.rollBack } }, `Roll back to ${status.previous} …`),
    ),
    el(
      "div",
      { class: "vectors" },
      el("p", { class: "note" }, `${count(status.items)} vectors in the gallery, by the version that made them`),
      held.length ? bar : el("p", {}, "The gallery is empty. Fill it with ", el("code", {}, "fixstar index IMAGES")),
      el("ul", { class: "legend" }, legend),
    ),
  );
}

// --- Who moved the pointer, when, and why a check was passed over.

function showDeployments(moves) {
  if (!moves.length) {
    renew(byId("deployments"), el("p", { class: "note" }, "No move yet: the first version answers since it was trained."));
    return;
  }
  const lines = moves.map((move) =>
    el(
      "li",
      {},
      el("div", { class: "job" }, el("strong", {}, MOVED_TO[move.kind]), badge(move.version), el("span", { class: "note" }, [when(move.when), move.by && `by ${move.by}`].filter(Boolean).join(" "))),
      move.reason && el("p", { class: "wrap forced" }, el("span", { class: "note" }, "without a passed check: "), move.reason),
    ),
  );
  renew(byId("deployments"), el("ol", { class: "jobs audit" }, lines));
}

// --- Check, deploy, roll back: what each will do is said before it is done.

const NOT_PASSED = { refuse: "Its check refused it: queries would lose.", "missing evidence": "Its check could not decide: evidence is missing." };
const REFUSED = "/problems/not-compatible"; // the gate's problem
const MOVED = "/problems/deployment-moved"; // the dialog spoke of a deployment that has changed since
const ENDS = "The backfill that is under way ends; what it has re-embedded stays so.";
const REASON = "Why deploy it anyway? This is kept in the history.";

/** Starts a check; it runs as a job. */
async function runCheck(version, rules = {}) {
  const button = document.querySelector(`[data-job="check ${CSS.escape(version)}"]`);
  if (button?.ariaDisabled === "true") return null; // it runs
  if (button) markBusy(button, "Starting …");
  await call(versionPath(version, "/check"), { json: rules });
  return `The check of ${version} was started.`;
}

/** Trains the next version on the stored items or a folder of the operator's; it runs as a job. */
async function upgrade(newest) {
  if (jobs.some((job) => job.kind === "upgrade" && isOpen(job))) return null;
  const folders = now.training_images;
  const source = el("select", { id: "upgrade-images" }, el("option", { value: "" }, "the stored items that have a label and an image"), folders.map((name) => el("option", { value: name }, `the folder ${name}`)));
  const stored = folders.length ? "the images chosen below" : "the stored items that have a label and an image";
  const done = await confirm({
    title: "Train an upgrade?",
    says: [
      `A new version is trained from ${newest}, with its settings, on ${stored}.`,
      "Searches continue meanwhile, and may be slower.",
      "Nothing is deployed: check the version when it is trained.",
    ],
    choice: folders.length ? el("label", {}, "Train on", source) : null,
    verb: "Train",
    act: () => call("/v1/upgrade", { json: source.value ? { data: source.value } : {} }),
  });
  return done && "The training of an upgrade was started.";
}

/** Words where it was done, null where the visitor thought better of it; `moved` runs where others were faster. */
async function deploy({ name, check, left_out }, status, backfilling, moved, queries = "checked") {
  if (queries === "old") return deployWithOldQueries(name, status, backfilling, moved);
  const passed = check === "pass";
  const says = [
    `Queries are embedded by ${name} from now on${status.deployed ? `, instead of ${status.deployed}` : ""}.`,
    `Nothing is re-embedded: ${vectors(status, left_out)} stay as they are and are searched.`,
    ...notSearched(left_out, name),
    passed ? "Its check passed." : (NOT_PASSED[check] ?? "It was never checked against the vectors that are there."),
    ...(backfilling ? [ENDS] : []),
    "You can roll back at any time.",
  ];
  const act = (force) => move("/v1/deploy", { version: name, force, deployed: status.deployed, queries }, moved);
  const forced = { title: `Deploy ${name} without a passed check?`, says, reason: REASON, verb: "Deploy anyway", danger: true, act };
  const plain = { title: `Deploy ${name}?`, says, verb: `Deploy ${name}`, act, onProblem: (problem) => (problem.type === REFUSED ? forced : null) };
  const done = await confirm(passed ? plain : forced);
  return done && [`${done.version} is deployed.`, ...notSearched(done.left_out, done.version)].join(" ");
}

/** Old vectors keep their own models' queries: they find what they find now. */
async function deployWithOldQueries(name, status, backfilling, moved) {
  const done = await confirm({
    title: `Deploy ${name}, and keep old queries for old vectors?`,
    says: [
      `New ${itemKind()}s and queries are embedded by ${name} from now on${status.deployed ? `, instead of ${status.deployed}` : ""}.`,
      "Vectors of older versions are searched by their own models: they find what they find now. Once items have new vectors, that costs one more forward pass per query.",
      ...(backfilling ? [ENDS] : []),
      "You can roll back at any time.",
    ],
    verb: `Deploy ${name}`,
    act: () => move("/v1/deploy", { version: name, deployed: status.deployed, queries: "old" }, moved),
  });
  return done && `${done.version} is deployed.`;
}

const MOVED_TO = { deploy: "deployed", rollback: "rolled back to", translate: "translated again for" };

/** Who embeds the queries for vectors of other versions, where that is not the deployed version alone. */
function askedBy({ searched_by: models, deployed }) {
  const helped = Object.entries(models).filter(([, names]) => names.some((name) => name !== deployed));
  return helped.map(([name, names]) => `Vectors of ${name} are asked by ${names.join(" and ")}${names.length > 1 ? ": one more forward pass per query" : " alone"}.`);
}

/** Asks the service what a rollback would do now, says that, and lets it happen only so. */
async function rollBack(status, moved) {
  const { deployed, to, unchecked, left_out, cancelled } = await call("/v1/rollback");
  const done = await confirm({
    title: `Roll back to ${to}?`,
    says: [
      to === deployed ? `Queries stay with ${to}, asked as they were before the last deployment.` : `Queries are embedded by ${to} from now on, instead of ${deployed}.`,
      `Nothing is re-embedded: ${vectors(status, left_out)} stay as they are and are searched.`,
      ...notSearched(left_out, to),
      ...Object.entries(unchecked).map(([name, number]) => `${plural(number, "vector")} made by ${name} ${number === 1 ? "is" : "are"} then searched unchecked: no check has tried ${to}'s queries on ${number === 1 ? "it" : "them"}.`),
      ...(cancelled ? [ENDS] : []),
      "The history keeps this move.",
    ],
    verb: `Roll back to ${to}`,
    act: () => move("/v1/rollback", { deployed, to }, moved),
  });
  return done && [`Rolled back to ${done.version}.`, ...Object.entries(done.unchecked).map(([name, number]) => `${plural(number, "vector")} of ${name} ${number === 1 ? "is" : "are"} searched unchecked.`), ...notSearched(done.left_out, done.version), ...(done.cancelled ? ["The backfill ends."] : [])].join(" ");
}

/** Where the deployment is not as the dialog says, the problem stands in it, and behind it what is the case now. */
async function move(path, json, moved) {
  try {
    return await call(path, { json });
  } catch (problem) {
    if (problem.type === MOVED) moved();
    throw problem;
  }
}

function notSearched(left_out, version) {
  return Object.entries(left_out).map(([name, number]) => `${plural(number, "vector")} made by ${name} ${number === 1 ? "is" : "are"} not searched: nothing connects them with ${version}.`);
}

function vectors({ vectors: held }, left_out) {
  const parts = Object.entries(held).filter(([name, number]) => number > 0 && !(name in left_out)).map(([name, number]) => `${count(number)} of ${name}`);
  return parts.length ? `the vectors (${parts.join(", ")})` : "the vectors";
}
