// How failures are shown: what happened, and what to do. Next steps are data: buttons where the page can do them, else words.
import { byId, el } from "./dom.js";
import { may } from "./session.js";

let handlers = {}; // action -> what the page does for it, with the step's arguments

/** Sets what the buttons of next steps do. */
export function onStep(actions) {
  handlers = actions;
}

/** A problem as an element; `retry` adds a button. In a dialog, which is about one thing, next steps are words. */
export function problemView(problem, { retry = null, small = false, dialog = false } = {}) {
  return el(
    "div",
    { class: small ? "problem small" : "problem" },
    el(
      "div",
      {},
      el("strong", {}, problem.title || "Something went wrong"),
      problem.detail || (problem.title ? "" : problem.message),
      problem.hint ? el("div", { class: "hint" }, problem.hint) : null,
      stepsView(problem.next_steps, !dialog),
    ),
    retry && el("button", { type: "button", on: { click: retry } }, "Try again"),
  );
}

/** The next steps of a problem or of a check. */
export function stepsView(steps, buttons = true) {
  if (!steps?.length) return null;
  return el("ul", { class: "steps" }, steps.map((step) => el("li", {}, stepView(step, buttons && step.request && handlers[step.action]))));
}

function stepView(step, act) {
  const { action, arguments: given, note } = step;
  const { version, ...others } = given;
  const details = Object.entries(others).map(([name, value]) => `${name} ${value ?? "…"}`).join(", ");
  const words = [action[0].toUpperCase() + action.slice(1).replaceAll("-", " "), version, details && `(${details})`].filter(Boolean).join(" ");
  if (!act || !may("admin")) return [words, note && `: ${note}`];
  return [el("button", { type: "button", class: "small", on: { click: () => act(given) } }, words), note && ` ${note}`];
}

/** Shows a problem above the view; null removes it. */
export function tellProblem(problem, retry = null) {
  const place = byId("problem");
  if (!problem) place.replaceChildren();
  else if (problem.name !== "AbortError") place.replaceChildren(problemView(problem, { retry }));
}
