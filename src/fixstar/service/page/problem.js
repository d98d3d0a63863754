// How failures are shown: what happened, and what to do.
import { byId, el } from "./dom.js";

/** A problem as an element; `retry` adds a button. */
export function problemView(problem, retry = null, small = false) {
  return el(
    "div",
    { class: small ? "problem small" : "problem" },
    el("div", {}, el("strong", {}, problem.title || "Something went wrong"), problem.detail || (problem.title ? "" : problem.message), problem.hint ? el("div", { class: "hint" }, problem.hint) : null),
    retry && el("button", { type: "button", on: { click: retry } }, "Try again"),
  );
}

/** Shows a problem above the view; null takes it away. */
export function tellProblem(problem, retry = null) {
  const place = byId("problem");
  if (!problem) place.replaceChildren();
  else if (problem.name !== "AbortError") place.replaceChildren(problemView(problem, retry));
}
