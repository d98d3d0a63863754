// Nothing that changes what visitors find happens without a sentence about it and a second press.
import { byId, el } from "./dom.js";
import { problemView } from "./problem.js";

/**
 * States what will happen, and does it on the second press. `act(reason)` runs with the dialog open: where it fails the
 * problem is shown there, and where `onProblem(problem)` returns other settings the dialog asks anew with them.
 * `reason` is the label of a field that must be filled, or null.
 */
export function confirm({ title, says, reason = null, verb, danger = false, act, onProblem = () => null, problem = null }) {
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
      }
    };
    dialog.replaceChildren(
      el(
        "form",
        { on: { submit }, novalidate: true },
        el("h2", { id: "confirm-title" }, title),
        el("ul", { class: "says" }, says.map((sentence) => el("li", {}, sentence))),
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
