// One item: its picture, large, beside the query; what is stored with it; copy its id, delete it.
import { address, call, may } from "./api.js";
import { badge, byId, el } from "./dom.js";
import { shownItem } from "./picture.js";
import { confirm } from "./problem.js";

/** Shows an item. `asked` is a picture of the query, or null; `removed` runs when the item was deleted. */
export function openItem(item, { asked, scale, like, removed, example = null }) {
  const dialog = byId("item");
  const id = el("input", { type: "text", id: "item-id", value: item.id, readonly: true, "aria-label": "Id" });
  const said = el("span", { class: "note", role: "status" });
  const leave = (then) => () => {
    dialog.close();
    then();
  };
  dialog.replaceChildren(
    el("h2", { id: "item-title" }, item.label ?? "no label"),
    el("div", { class: "beside" }, asked && seen("The query", asked), seen(asked ? "The item" : "", shownItem(item, `picture of ${item.id}`, 1024))),
    el("div", { class: "copy" }, id, el("button", { type: "button", id: "copy-id", on: { click: () => copy(id, said) } }, "Copy id"), said),
    el(
      "dl",
      { class: "payload" },
      fact("vector of", badge(item.version)),
      typeof item.score === "number" && fact(scale.spoken, item.score.toFixed(3)),
      Object.entries(item.payload ?? {}).filter(([name]) => name !== "text" || item.thumbnail).map(([name, value]) => fact(name, typeof value === "string" ? value : JSON.stringify(value))),
    ),
    el(
      "div",
      { class: "buttons" },
      example && el("button", { type: "button", on: { click: leave(() => example("negative", item)) } }, "Not like this"),
      example && el("button", { type: "button", on: { click: leave(() => example("positive", item)) } }, "Also like this"),
      el("button", { type: "button", on: { click: leave(() => like(item.id)) } }, "More like this"),
      el("button", { type: "button", class: "primary", autofocus: true, on: { click: () => dialog.close() } }, "Close"),
      may("write") && el("button", { type: "button", class: "danger", on: { click: () => remove(item.id, leave(removed)) } }, "Delete …"),
    ),
  );
  dialog.showModal();
  dialog.scrollTop = 0; // not at the button that has the focus
}

const seen = (words, shown) => el("figure", {}, shown, words && el("figcaption", { class: "note" }, words));
const fact = (name, value) => el("div", {}, el("dt", {}, name), el("dd", { class: "wrap" }, value));

async function copy(id, said) {
  id.select();
  try {
    await navigator.clipboard.writeText(id.value);
    said.textContent = "Copied";
  } catch {
    said.textContent = "Selected: press Ctrl C"; // the browser forbids it, as it does without HTTPS
  }
}

async function remove(id, done) {
  const act = () => call(address("/v1/item", { id }), { method: "DELETE" });
  const says = [`${id} is no longer found.`, "Its vector and what is stored with it are deleted for good."];
  if (await confirm({ title: "Delete this item?", says, verb: "Delete", danger: true, act })) done();
}
