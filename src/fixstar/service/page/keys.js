// Keys for those who do not reach for the mouse.
import { byId, el } from "./dom.js";

const KEYS = [
  ["/", "choose an image to search with"],
  ["Ctrl V", "search with a copied image"],
  ["Arrows", "move in the results and in the matrix"],
  ["Enter", "more like the chosen result"],
  ["g s", "go to the search"],
  ["g v", "go to the versions"],
  ["Esc", "close a dialog"],
  ["?", "show these keys"],
];

export function startKeys() {
  let before = "";
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=file]), textarea, select");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const pressed = before + event.key;
    before = event.key === "g" ? "g" : "";
    if (pressed.endsWith("/")) toSearch(event);
    else if (pressed.endsWith("?")) showKeys();
    else if (pressed === "gs") location.hash = "#search";
    else if (pressed === "gv") location.hash = "#versions";
  });
  byId("show-keys").addEventListener("click", showKeys);
}

function toSearch(event) {
  event.preventDefault();
  const focus = () => byId("file").focus();
  if (byId("versions-view").hidden) return focus();
  window.addEventListener("hashchange", focus, { once: true }); // the view must be there to take it
  location.hash = "#search";
}

function showKeys() {
  const dialog = byId("keys");
  dialog.replaceChildren(
    el("h2", { id: "keys-title" }, "Keys"),
    el("table", {}, el("tbody", {}, KEYS.map(([key, what]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, key)), el("td", {}, what))))),
    el("div", { class: "buttons" }, el("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, "Close")),
  );
  dialog.showModal();
}
