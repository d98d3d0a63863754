// Backfill: re-embed old vectors with the deployed version, as much as is wanted, and watch it go on.
import { call } from "./api.js";
import { curve } from "./curve.js";
import { byId, el, renew } from "./dom.js";
import { count, percent, plural } from "./format.js";
import { cancelButton, progressBar } from "./jobs.js";
import { problemView } from "./problem.js";
import { may } from "./session.js";
import { badge } from "./tones.js";

const ORDERS = { auto: "what does best on labelled images", gain: "what gains most", classes: "every class by turns", certain: "the certain ones", uncertain: "the uncertain ones", queried: "those found most often", oldest: "the oldest", random: "any" };
let started = () => {};
let shown = ""; // what the form was made for: it is not made anew under the visitor's hands

/** `onStart` runs when a job was begun. */
export function startBackfill(onStart) {
  started = onStart;
}

export function showBackfill(state, status) {
  const place = byId("backfill");
  const old = Object.entries(status.vectors).reduce((sum, [name, number]) => sum + (name === status.deployed ? 0 : number), 0);
  const busy = state.job?.state === "running" || state.job?.state === "queued";
  const offered = may("admin") && old > 0 && !busy;
  const kind = `${status.deployed} ${offered}`;
  if (shown !== kind || !place.querySelector(".state")) {
    shown = kind;
    renew(place, el("div", { class: "state" }), offered && form());
  }
  renew(place.querySelector(".state"), summary(status, old), progress(state), chart(state));
}

function summary(status, old) {
  if (!status.deployed) return el("p", { class: "note" }, "Nothing is deployed yet.");
  if (!old) return el("p", { class: "note" }, "All vectors are of ", badge(status.deployed), ". There is nothing to re-embed.");
  return el("p", { class: "note" }, `${plural(old, "vector")} of other versions could be re-embedded with `, badge(status.deployed), ". Searches go on meanwhile.");
}

function progress({ job, version, order, budget, planned, position, kept }) {
  if (job && (job.state === "running" || job.state === "queued")) return el("div", { class: "running" }, progressBar(job), el("p", { class: "note" }, job.message || ""), cancelButton(job, started));
  if (job?.state === "failed") return problemView(job.error ?? { title: "The last backfill failed" }, null, true);
  if (!version) return null;
  const rest = position < planned ? " Started with the same settings it goes on from there." : "";
  const old = kept ? ` ${plural(kept, "item")} kept the old vector.` : "";
  return el("p", { class: "note" }, "Last plan: to ", badge(version), `, order ${order}, budget ${budget}; ${count(position)} of ${count(planned)} done.${old}${rest}`);
}

function chart({ predicted, measured = [] }) {
  if (!predicted && measured.length < 2) return null;
  const lines = [];
  if (predicted) {
    lines.push({ name: `predicted, ${predicted.order}`, kind: "planned", points: predicted.shares.map((share, i) => [share, predicted.planned[i]]) });
    lines.push({ name: "predicted, random order", kind: "random", points: predicted.shares.map((share, i) => [share, predicted.random[i]]) });
  }
  if (measured.length) lines.push({ name: "measured on the gallery", kind: "measured", points: measured.map((point) => [point.share, point.accuracy]) });
  return el("figure", { class: "chart" }, curve(lines), el("figcaption", { class: "note" }, "Queries that find their class, over the share of old vectors re-embedded.", lastPoint(measured)));
}

const lastPoint = (measured) => (measured.length ? ` Measured last: ${percent(measured.at(-1).accuracy)} at ${percent(measured.at(-1).share, 0)}.` : "");

function form() {
  const budget = el("input", { type: "text", id: "budget", value: "10%", required: true, pattern: "all|[0-9]+|[0-9]+(\\.[0-9]+)?%", autocomplete: "off" });
  const order = el("select", { id: "order" }, Object.entries(ORDERS).map(([name, words]) => el("option", { value: name }, `${name}: ${words}`)));
  const rate = el("input", { type: "number", id: "rate", min: "0.1", step: "any", placeholder: "no limit" });
  const go = el("button", { class: "primary" }, "Start backfill");
  const trouble = el("div", { role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    go.disabled = true;
    trouble.replaceChildren();
    try {
      await call("/v1/backfill", { json: { budget: budget.value.trim(), order: order.value, rate: rate.value ? Number(rate.value) : null } });
      started();
    } catch (error) {
      trouble.replaceChildren(problemView(error, null, true));
    } finally {
      go.disabled = false;
    }
  };
  return el(
    "form",
    { class: "backfill-form", on: { submit }, "aria-label": "Start a backfill" },
    el("label", {}, "Budget", budget, el("small", {}, "10%, 5000 or all")),
    el("label", {}, "First", order),
    el("label", {}, "Images a second", rate),
    go,
    trouble,
  );
}
