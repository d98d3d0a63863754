// Who moved the pointer, when, and why a check was passed over.
import { byId, el, renew } from "./dom.js";
import { when } from "./format.js";
import { badge } from "./tones.js";

export function showDeployments(moves) {
  if (!moves.length) {
    renew(byId("deployments"), el("p", { class: "note" }, "No move yet: the first version answers since it was trained."));
    return;
  }
  const lines = moves.map((move) =>
    el(
      "li",
      {},
      el("div", { class: "job" }, el("strong", {}, move.kind === "rollback" ? "rolled back to" : "deployed"), badge(move.version), el("span", { class: "note" }, [when(move.when), move.by && `by ${move.by}`].filter(Boolean).join(" "))),
      move.reason && el("p", { class: "wrap forced" }, el("span", { class: "note" }, "against its check: "), move.reason),
    ),
  );
  renew(byId("deployments"), el("ol", { class: "jobs audit" }, lines));
}
