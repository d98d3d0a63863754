// Backfill: re-embed old vectors with the deployed version, within a budget, and watch the progress.
import { call, itemKind, may } from "./api.js";
import { badge, byId, count, el, percent, plural, points, renew, svg, unfold } from "./dom.js";
import { cancelButton, progressBar } from "./jobs.js";
import { confirm, problemView } from "./problem.js";

const LOSES = "/problems/backfill-loses";
const ORDERS = { auto: "what does best on labelled images", gain: "what gains most", classes: "every class by turns", certain: "the certain ones", uncertain: "the uncertain ones", queried: "those found most often", oldest: "the oldest", random: "any" };
let started = () => {};
let shown = ""; // what the form was made for: it is not rebuilt while the visitor uses it
let latest = null; // the last state of the service

/** `onStart` runs when a job was begun. */
export function startBackfill(onStart) {
  started = onStart;
}

/** What a next step asks for: its settings, else those of the last plan, put into the form and submitted. */
export function askBackfill({ budget = latest?.budget, order = latest?.order }) {
  const form = byId("backfill").querySelector("form");
  if (!form) return;
  unfold(form);
  if (budget) byId("budget").value = budget;
  byId("budget").dispatchEvent(new Event("input"));
  if (order) byId("order").value = order;
  form.requestSubmit();
}

export function showBackfill(state, status) {
  const place = byId("backfill");
  latest = state;
  const offered = may("admin") && state.outlook?.could > 0; // there is none while a backfill is under way
  const kind = `${state.outlook?.version} ${offered}`;
  if (shown !== kind || !place.querySelector(".state")) {
    shown = kind;
    renew(place, el("div", { class: "state" }), offered && form());
  }
  renew(place.querySelector(".state"), summary(status, state.outlook), progress(state, status.deployed), chart(state, chosenShare()));
  showChoice();
}

const note = (...words) => el("p", { class: "note" }, ...words);

function summary(status, outlook) {
  if (!status.deployed) return note("Nothing is deployed yet.");
  if (!status.items) return note("The gallery is empty: there is nothing to re-embed.");
  if (!outlook) return null; // one is under way, and tells its own numbers
  const { version, could, older, newer, looked_at: looked, without_image: bare } = outlook;
  const some = could ? note(`${looked < older ? "Up to " : ""}${plural(could, "vector")} of older versions could be re-embedded with `, badge(version), ". Searches continue meanwhile.") : null;
  const others = Object.keys(newer).length || older > 0;
  const none = could ? null : others ? note("There is nothing to re-embed with ", badge(version), ".") : note("All vectors are of ", badge(version), ". There is nothing to re-embed.");
  const left = Object.entries(newer).map(([name, number]) => note(`${plural(number, "vector")} of `, badge(name), ` ${number === 1 ? "is newer and stays as it is" : "are newer and stay as they are"}.`));
  const among = looked < older ? `Of the first ${count(looked)} looked at, ` : "";
  return [some, none, left, bare ? note(`${among}${plural(bare, "older vector")} ${bare === 1 ? "has" : "have"} no ${itemKind()} here, as imported ones mostly, and ${bare === 1 ? "stays as it is" : "stay as they are"}.`) : null].flat();
}

function progress({ job, version, order, budget, planned, position, kept }, deployed) {
  if (job && (job.state === "running" || job.state === "queued")) return el("div", { class: "running" }, progressBar(job), el("p", { class: "note" }, job.message || ""), cancelButton(job, started));
  if (job?.state === "failed") return [problemView(job.error ?? { title: "The last backfill failed" }, { small: true }), job.error?.type === LOSES && note("Started with the same settings it says so, and asks whether to do it anyway.")];
  if (!version) return null;
  const over = version !== deployed;
  const rest = over ? ` It is over: ${deployed} is deployed now.` : position < planned ? " Started with the same settings it resumes there." : "";
  const old = kept ? ` ${plural(kept, "item")} kept the old vector.` : "";
  return el("p", { class: "note" }, "Last plan: to ", badge(version), `, order ${order}, budget ${budget}; ${count(position)} of ${count(planned)} done.${old}${rest}`);
}

function chart({ predicted, measured = [], version }, share) {
  if (!predicted && measured.length < 2) return null;
  const lines = [];
  if (predicted) {
    lines.push({ name: `predicted, ${predicted.order}`, kind: "planned", points: predicted.shares.map((share, i) => [share, predicted.planned[i]]) });
    lines.push({ name: "predicted, random order", kind: "random", points: predicted.shares.map((share, i) => [share, predicted.random[i]]) });
  }
  if (measured.length) lines.push({ name: "measured on the gallery", kind: "measured", points: measured.map((point) => [point.share, point.accuracy]) });
  return el("figure", { class: "chart" }, curve(lines, share), el("figcaption", { class: "note" }, `Queries that find their class, over the share of old vectors re-embedded${version ? ` with ${version}` : ""}.`, lastPoint(measured)));
}

const lastPoint = (measured) => (measured.length ? ` Measured last: ${percent(measured.at(-1).accuracy)} at ${percent(measured.at(-1).share, 0)}.` : "");

function form() {
  const typed = () => {
    budget.removeAttribute("aria-invalid");
    if (!budgetProblem(budget.value)) slider.value = Math.round((100 * budgetItems(budget.value, latest.outlook.older)) / latest.outlook.older);
    showChoice();
  };
  const moved = () => {
    budget.value = slider.value === "100" ? "all" : `${slider.value}%`;
    typed();
  };
  const budget = el("input", { type: "text", id: "budget", value: "10%", autocomplete: "off", "aria-describedby": "budget-words", on: { input: typed } });
  const slider = el("input", { type: "range", id: "share", min: 1, max: 100, value: 10, "aria-describedby": "share-words", on: { input: moved } });
  const order = el("select", { id: "order" }, Object.entries(ORDERS).map(([name, words]) => el("option", { value: name }, `${name}: ${words}`)));
  const rate = el("input", { type: "number", id: "rate", min: "0.1", step: "any", placeholder: "no limit" });
  const trouble = el("div", { role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    const wanted = { budget: budget.value.trim().toLowerCase(), order: order.value, rate: rate.value ? Number(rate.value) : null };
    const wrong = budgetProblem(wanted.budget);
    trouble.replaceChildren(...(wrong ? [problemView(wrong, { small: true })] : []));
    if (wrong) budget.setAttribute("aria-invalid", "true");
    if (wrong) return budget.focus();
    if (await asked(wanted)) started();
  };
  return el(
    "form",
    { class: "backfill-form", on: { submit }, "aria-label": "Start a backfill" },
    el("label", { class: "whole" }, "Share to re-embed", slider, el("output", { id: "share-words", for: "share" })),
    el("label", {}, "Budget", budget, el("small", { id: "budget-words" }, priced() ? "10%, 5000, $2.50 or all" : "10%, 5000 or all")),
    el("label", {}, "First", order),
    el("label", {}, "Images per second", rate),
    el("button", { class: "primary" }, "Start backfill …"),
    trouble,
  );
}

// --- The choice on the curve: where the slider stands, and what is predicted there.

/** The share of the plan's old vectors that would be of the new version; null where no curve is drawn for it. */
function chosenShare() {
  const { predicted, outlook, version, old, position } = latest;
  const budget = byId("budget")?.value.trim().toLowerCase();
  if (!predicted || !budget || budgetProblem(budget) || version !== outlook?.version) return null;
  const done = old ? position / old : 0;
  return done + (1 - done) * (budgetItems(budget, outlook.older) / outlook.older);
}

function showChoice() {
  const words = byId("share-words");
  if (!words) return;
  const budget = byId("budget").value.trim().toLowerCase();
  const share = chosenShare();
  const number = budgetProblem(budget) ? null : Math.min(latest.outlook.could, budgetItems(budget, latest.outlook.older));
  const now = share === null ? null : at(latest.predicted, latest.old ? latest.position / latest.old : 0);
  const then = share === null ? null : at(latest.predicted, share);
  words.textContent = [number && plural(number, "vector"), then === null ? "the prediction comes with the first plan" : `predicted: ${percent(then)} of queries find their class, ${points(then - now)} points`].filter(Boolean).join(", ");
  byId("backfill").querySelector(".chart")?.replaceWith(chart(latest, share));
}

/** The predicted accuracy at a share, between the points of the curve. */
function at({ shares, planned }, share) {
  const next = Math.max(1, shares.findIndex((one) => one >= share - 1e-9));
  const part = (share - shares[next - 1]) / (shares[next] - shares[next - 1]);
  return planned[next - 1] + part * (planned[next] - planned[next - 1]);
}

/** Says what it replaces and costs, and begins on the second press. */
function asked({ budget, order, rate }) {
  const { outlook, images_a_second: measured, version, planned, position } = latest;
  const { version: target, older, could, looked_at: looked } = outlook;
  const resumes = version === target && latest.budget === budget && [latest.order, "auto"].includes(order) && position < planned;
  const loses = resumes && position === 0 && latest.job?.error?.type === LOSES;
  const number = resumes ? planned - position : Math.min(could, budgetItems(budget, older));
  const exact = looked === older; // else some may turn out to have no image
  return confirm({
    title: `Re-embed ${exact ? "" : "up to "}${plural(number, "vector")} with ${target}?`,
    says: [
      priced() ? `The server charges about ${money(number * outlook.cost)} for it, by the price that was given.` : null,
      `${resumes && !loses ? "The last plan resumes. " : ""}${exact ? "" : "Up to "}${count(number)} of ${plural(older, "older vector")} ${number === 1 ? "is" : "are"} replaced by ${number === 1 ? "one" : "ones"} that ${target} makes.`,
      loses ? "Searches are predicted to become worse by it, as said below." : `Where held-out ${itemKind()}s predict a loss, nothing is replaced.`,
      "The old vectors are not kept, and nothing here restores them: a rollback changes which version answers, not the vectors.",
      `${plural(number, itemKind())} ${number === 1 ? "is" : "are"} read and embedded${timeWords(number, rate, measured)}.`,
      "Searches continue meanwhile. It can be cancelled; what was replaced by then stays replaced.",
    ].filter(Boolean),
    verb: `Replace ${exact ? "" : "up to "}${plural(number, "vector")}${loses ? " anyway" : ""}`,
    danger: true,
    problem: loses ? { ...latest.job.error, hint: "", next_steps: [] } : null, // the button below is what the hint would say
    act: () => call("/v1/backfill", { json: { budget, order, rate, deployed: target, anyway: loses } }),
  });
}

// --- How much of the gallery a backfill re-embeds: a share, a number, money, or all. The same rule as the service's.

const ALLOWED = "A share above 0% and up to 100% such as 10%, a number of items from 1 on such as 5000, or all.";
const ALLOWED_PRICED = "A share above 0% and up to 100% such as 10%, a number of items from 1 on such as 5000, money such as $2.50, or all.";

/** Whether the deployed version has a price, so that a budget may be money. */
const priced = () => Boolean(latest.outlook?.cost);

/** An amount as a budget writes it, with two digits that count for less than a dollar. */
const money = (amount) => `$${amount >= 1 ? amount.toFixed(2) : amount.toLocaleString("en", { maximumSignificantDigits: 2 })}`;

/** What is wrong with a budget as it was written, or null. */
function budgetProblem(text) {
  const [, dollar, number, sign] = /^(\$?)([0-9]{1,12}(?:\.[0-9]{1,4})?)(%?)$/.exec(text) ?? [];
  let seen = null;
  if (text === "all") return null;
  if (dollar && !priced()) seen = `“${text}” is money, and ${latest.outlook.version} has no price per token.`;
  else if (dollar && sign) seen = `“${text}” is neither money nor a share.`;
  else if (number === undefined) seen = text ? `“${text}” is neither.` : "Nothing is written there.";
  else if (Number(number) === 0) seen = `“${text}” is nothing: no vector would be re-embedded.`;
  else if (sign && Number(number) > 100) seen = `“${text}” is more than everything.`;
  else if (dollar && Number(number) < latest.outlook.cost) seen = `“${text}” is less than one item costs, about ${money(latest.outlook.cost)}.`;
  else if (!dollar && !sign && number.includes(".")) seen = `“${text}” is no whole number of items.`;
  return seen && { title: "This budget cannot be used", detail: seen, hint: priced() ? ALLOWED_PRICED : ALLOWED };
}

/** How many of so many items a budget means. */
function budgetItems(text, total) {
  if (text === "all") return total;
  if (text.startsWith("$")) return Math.min(total, Math.floor(Number(text.slice(1)) / latest.outlook.cost + 1e-9));
  const number = Number.parseFloat(text);
  return Math.min(total, text.endsWith("%") ? -Math.floor((-total * number) / 100) : number);
}

/** What is known about the time that images take: the limit asked for, or the pace of the last backfill; else nothing. */
function timeWords(images, rate, measured) {
  if (rate) return `, ${count(rate)} per second at most: ${span(images / rate)} or longer`;
  return measured ? `: about ${span(images / measured)}, at the ${count(Number(measured.toPrecision(2)))} ${itemKind()}s per second of the last backfill` : "";
}

function span(seconds) {
  if (seconds < 100) return `${Math.max(1, Math.round(seconds))} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

// --- Accuracy over the share re-embedded: lines for what is predicted, points for what was measured.

const WIDTH = 560;
const HEIGHT = 230;
const LEFT = 54;
const RIGHT = 12;
const BOTTOM = 30;
const TOP = 26;

/** A drawing of `[{name, kind, points: [[share, accuracy]]}]`, with a mark at a share. */
function curve(lines, share = null) {
  const values = lines.flatMap((line) => line.points.map(([, value]) => value));
  const spare = Math.max(0.01, (Math.max(...values) - Math.min(...values)) * 0.1);
  const low = Math.max(0, Math.min(...values) - spare);
  const high = Math.min(1, Math.max(...values) + spare);
  const x = (share) => LEFT + share * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - (value - low) / Math.max(high - low, 1e-6)) * (HEIGHT - TOP - BOTTOM);
  const spoken = lines.map(({ name, points }) => `${name}: ${percent(points[0][1])} to ${percent(points.at(-1)[1])}`).join("; ");
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": spoken }, axes(x, y, low, high), share !== null && svg("line", { class: "marker", x1: x(share), x2: x(share), y1: TOP, y2: HEIGHT - BOTTOM }), lines.map((line) => drawn(line, x, y)), lines.map(legend));
}

function axes(x, y, low, high) {
  const heights = [low, (low + high) / 2, high].map((value) => [svg("line", { class: "gridline", x1: x(0), x2: x(1), y1: y(value), y2: y(value) }), svg("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, percent(value, 0))]);
  const shares = [0, 0.25, 0.5, 0.75, 1].map((share) => svg("text", { class: "tick", x: x(share), y: HEIGHT - 8, "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" }, percent(share, 0)));
  return [heights, shares].flat(2);
}

function drawn({ kind, points }, x, y) {
  const path = svg("path", { class: `line ${kind}`, d: `M${points.map(([share, value]) => `${x(share).toFixed(1)} ${y(value).toFixed(1)}`).join("L")}` });
  const dots = kind === "measured" ? points.map(([share, value]) => svg("circle", { class: "dot", cx: x(share), cy: y(value), r: 4.5 }, svg("title", {}, `${percent(value)} at ${percent(share, 0)}`))) : [];
  return svg("g", {}, path, dots);
}

function legend({ name, kind }, row) {
  const at = LEFT + row * 175;
  return svg("g", { "aria-hidden": "true" }, svg("line", { class: `line ${kind}`, x1: at, x2: at + 20, y1: 10, y2: 10 }), kind === "measured" && svg("circle", { class: "dot", cx: at + 10, cy: 10, r: 4.5 }), svg("text", { class: "tick", x: at + 26, y: 14 }, name));
}
