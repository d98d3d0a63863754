// How failures are shown: what happened, and what to do. Next steps are data: buttons where the page can do them, else words.
import { may } from "./api.js";
import { byId, el } from "./dom.js";

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

// --- Notices: what was done, shown at the lower edge and said aloud.

const KEPT = 3; // notices that stay for those who come to them late
const SEEN = 12000; // milliseconds that one is shown

/** Said beside what was said just before: the end of a job must not cut off what the visitor's own move did. */
export function announce(words) {
  const said = byId("announce");
  const close = el("button", { type: "button", class: "icon", "aria-label": "Hide this notice", on: { click: () => hide() } }, el("span", { "aria-hidden": "true" }, "✕"));
  const notice = el("div", { class: "notice" }, el("p", {}, words), close);
  const hide = () => {
    if (document.activeElement === close) byId("main").focus();
    close.remove();
    notice.className = "unseen";
  };
  said.append(notice);
  setTimeout(hide, SEEN);
  while (said.children.length > KEPT) said.firstElementChild.remove();
}

// --- Confirmation: whatever changes search results is described first, and needs a second press.

/**
 * States what will happen, and does it on the second press. `act(reason)` runs with the dialog open: where it fails the
 * problem is shown there, and where `onProblem(problem)` returns other settings the dialog asks again with them.
 * `choice` is a labelled field that `act` reads, `reason` the label of a field that must be filled, or null.
 */
export function confirm({ title, says, choice = null, reason = null, verb, danger = false, act, onProblem = () => null, problem = null }) {
  const dialog = byId("confirm");
  return new Promise((resolve) => {
    const why = reason && el("textarea", { id: "reason", required: true, maxlength: 500, rows: 3 });
    const go = el("button", { class: danger ? "danger" : "primary" }, verb);
    const cancel = el("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel");
    const trouble = el("div", { role: "alert" }, problem && problemView(problem, { small: true, dialog: true }));
    let running = null; // a dialog that is closed while it acts still answers with what came of it
    const submit = async (event) => {
      event.preventDefault();
      if (why && !why.value.trim()) return why.focus();
      go.disabled = true;
      go.classList.add("busy");
      try {
        running = act(why ? why.value.trim() : null);
        await running;
        dialog.close();
      } catch (error) {
        running = null;
        if (!dialog.open) return;
        const again = onProblem(error);
        if (again) return resolve(confirm({ ...again, problem: error }));
        trouble.replaceChildren(problemView(error, { small: true, dialog: true }));
        go.disabled = false;
        go.classList.remove("busy");
      }
    };
    dialog.replaceChildren(
      el(
        "form",
        { on: { submit }, novalidate: true },
        el("h2", { id: "confirm-title" }, title),
        el("ul", { class: "says" }, says.map((sentence) => el("li", {}, sentence))),
        choice,
        why && el("label", {}, reason, why),
        trouble,
        el("div", { class: "buttons" }, cancel, go),
      ),
    );
    dialog.onclose = () => resolve(running && running.catch(() => null));
    if (!dialog.open) dialog.showModal();
    (why ?? (danger ? cancel : go)).focus(); // what cannot be undone is not done by pressing Enter twice
  });
}
