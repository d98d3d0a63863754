// The upgrade board: loads what its panels show, and looks again while jobs run.
import { call } from "./api.js";
import { askBackfill, showBackfill, startBackfill } from "./backfill.js";
import { showDeployments } from "./deployments.js";
import { byId, el, renew } from "./dom.js";
import { showFlips } from "./flips.js";
import { showHistory } from "./history.js";
import { JobWatch, showJobs } from "./jobs.js";
import { showLineage } from "./lineage.js";
import { showMatrix } from "./matrix.js";
import { deploy, rollBack, runCheck } from "./moves.js";
import { showOverview } from "./overview.js";
import { onStep, problemView, tellProblem } from "./problem.js";
import { status } from "./session.js";
import { rememberVersions } from "./tones.js";

const SELDOM = 3; // of the looks at a running backfill, every third also counts the vectors
const KEPT = 3; // announcements that stay for those who come to them late
const watch = new JobWatch(onLook, onEnd);
let now = null; // the last status
let known = []; // all versions
let backfilling = false; // whether a backfill was under way at the last look at the jobs

export function showBoard() {
  refresh();
  watch.start();
}

export function hideBoard() {
  watch.stop();
}

const actions = {
  check: (version, rules) => acted(() => runCheck(version, rules)),
  deploy: (version) => acted(() => deploy(version, now, backfilling, refresh)),
  rollBack: () => acted(() => rollBack(now, refresh)),
};

onStep({
  backfill: askBackfill,
  check: ({ version, ...rules }) => actions.check(version, rules),
  deploy: ({ version }) => actions.deploy(known.find(({ name }) => name === version)),
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
  if (document.activeElement === document.body) byId(place).focus();
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
      showFlips(versions);
    }),
    panel("matrix", "/v1/compatibility", showMatrix),
    panel("deployments", "/v1/deployments", showDeployments),
    panel("history", "/v1/history", showHistory),
    panel("backfill", "/v1/backfill", (state) => showBackfill(state, now)),
    panel("jobs", "/v1/jobs", (jobs) => showJobs(jobs, () => watch.poke())),
  ]);
}

/** Loads one panel; where that fails the others stand all the same. */
async function panel(place, path, show) {
  try {
    show(await call(path));
  } catch (error) {
    renew(byId(place), problemView(error, { retry: () => panel(place, path, show), small: true }));
  }
}

async function onLook(jobs, look) {
  showJobs(jobs, () => watch.poke());
  backfilling = jobs.some((job) => job.kind === "backfill" && (job.state === "running" || job.state === "queued"));
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

/** Said aloud beside what was said just before: the end of a job must not cut off what the visitor's own move did. */
function announce(words) {
  const said = byId("announce");
  said.append(el("p", {}, words));
  while (said.children.length > KEPT) said.firstElementChild.remove();
}
