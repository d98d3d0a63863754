// Jobs: polled every second while one runs, every 15 seconds otherwise, not at all while the page is hidden.
import { call, may } from "./api.js";
import { byId, count, duration, el, renew, when } from "./dom.js";
import { problemView } from "./problem.js";

const OFTEN = 1000;
const SELDOM = 15000;
const LISTED = 8;
export const isOpen = (job) => job.state === "queued" || job.state === "running";

export class JobWatch {
  /** `look(jobs, n)` at every look, `ended(job)` for each that came to its end since the last one. */
  constructor(look, ended) {
    Object.assign(this, { look, ended, on: false, timer: 0, open: new Set(), looks: 0 });
    document.addEventListener("visibilitychange", () => !document.hidden && this.poke());
  }

  start() {
    this.on = true;
    this.poke();
  }

  /** Ends with the last job that is under way. */
  stop() {
    this.on = false;
    if (!this.open.size) clearTimeout(this.timer);
  }

  /** Looks now. */
  poke() {
    clearTimeout(this.timer);
    if (this.on || this.open.size) this.timer = setTimeout(() => this.tick(), 0);
  }

  async tick() {
    if (document.hidden) return;
    let wait = SELDOM;
    try {
      const jobs = await call("/v1/jobs");
      const open = jobs.filter(isOpen);
      if (open.length) wait = OFTEN;
      const before = this.open;
      this.open = new Set(open.map((job) => job.id));
      await this.look(jobs, this.looks++);
      jobs.filter((job) => before.has(job.id) && !isOpen(job)).forEach(this.ended);
    } catch {
      wait = 5 * OFTEN; // the service may be restarting; the other panels say what is wrong
    }
    clearTimeout(this.timer);
    if (this.on || this.open.size) this.timer = setTimeout(() => this.tick(), wait);
  }
}

export function showJobs(jobs, changed) {
  const latest = [...jobs].sort((a, b) => (b.created ?? "").localeCompare(a.created ?? "")).slice(0, LISTED);
  if (!latest.length) renew(byId("jobs"), el("p", { class: "note" }, "No job has run yet. Checks, upgrades, backfills, snapshots and large uploads appear here."));
  else renew(byId("jobs"), el("ul", { class: "jobs" }, latest.map((job) => line(job, changed))));
}

function line(job, changed) {
  const end = job.ended ? new Date(job.ended) : new Date();
  const took = job.started ? `, ${duration(end - new Date(job.started))}` : "";
  return el(
    "li",
    {},
    el("div", { class: "job" }, el("strong", {}, title(job)), el("span", { class: `chip ${job.state}` }, job.state), el("span", { class: "note" }, `${when(job.created)}${took}`), isOpen(job) && cancelButton(job, changed)),
    isOpen(job) && progressBar(job),
    job.message && el("p", { class: "note wrap" }, job.message),
    job.error && problemView(job.error, { small: true }),
  );
}

const title = (job) => [job.kind, job.version].filter(Boolean).join(" ");
const isCounted = (job) => typeof job.total === "number" && job.total > 0;

/** How far a job is, in a few words. */
function progressWords(job) {
  if (isCounted(job)) return `${count(job.done)} of ${count(job.total)}`;
  return job.state === "queued" ? "waiting" : job.done ? `${count(job.done)} so far` : "under way";
}

export function progressBar(job) {
  const known = isCounted(job);
  return el("div", { class: "progress" }, el("progress", { max: known ? job.total : null, value: known ? job.done : null, "aria-label": `${job.kind} job` }), el("span", {}, progressWords(job)));
}

/** Jobs under way, at the lower edge of the window: they stay in view, also beside the search. */
export function showJobBar(jobs, changed) {
  const open = jobs.filter(isOpen);
  byId("jobbar").hidden = !open.length;
  renew(byId("jobbar"), open.map((job) => el("div", { class: "job" }, el("strong", {}, title(job)), progressBar(job), cancelButton(job, changed))));
}

/** The button that starts a job shows how far it is, and cannot be pressed meanwhile. */
export function showOnButtons(jobs) {
  for (const button of document.querySelectorAll("[data-job]")) {
    const job = jobs.find((one) => isOpen(one) && title(one) === button.dataset.job);
    if (job) markBusy(button, `${job.kind === "upgrade" ? "Training" : "Checking"} … ${progressWords(job)}`);
    else if (button.dataset.idle) markIdle(button);
  }
}

/** A button that was pressed, with words for what it does now. It keeps the focus, so it is not disabled. */
export function markBusy(button, words) {
  button.dataset.idle ??= button.textContent;
  button.textContent = words;
  button.setAttribute("aria-disabled", "true");
  button.classList.add("busy");
}

function markIdle(button) {
  button.textContent = button.dataset.idle;
  delete button.dataset.idle;
  button.removeAttribute("aria-disabled");
  button.classList.remove("busy");
}

export function cancelButton(job, changed) {
  if (!may(job.kind === "index" ? "write" : "admin")) return null;
  const click = async (event) => {
    event.target.disabled = true;
    try {
      await call(`/v1/jobs/${encodeURIComponent(job.id)}/cancel`, { json: {} });
    } finally {
      changed();
    }
  };
  return el("button", { type: "button", class: "small", data: { focus: `cancel ${job.id}` }, on: { click } }, "Cancel");
}
