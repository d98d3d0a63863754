// The page: which view is shown, and what all views need to know.
import { fitAdd, startAdd } from "./add.js";
import { itemKind, may, startSession, status } from "./api.js";
import { hideBoard, showBoard } from "./board.js";
import { byId, el, isNarrow, rememberVersions } from "./dom.js";
import { tellProblem } from "./problem.js";
import { focusQuery, showRoute, startSearch } from "./search.js";

function route() {
  const hash = location.hash || "#search";
  const view = ["#versions", "#add"].includes(hash) ? hash.slice(1) : "search";
  for (const name of ["search", "add", "versions"]) {
    byId(`${name}-view`).hidden = name !== view;
    if (name === view) byId(`tab-${name}`).setAttribute("aria-current", "page");
    else byId(`tab-${name}`).removeAttribute("aria-current");
  }
  document.title = `${{ search: "Search", add: `Add ${itemKind()}s`, versions: "Versions" }[view]} – fixstar`;
  tellProblem(null);
  if (view === "versions") return showBoard();
  hideBoard();
  if (view === "add") return null;
  return showRoute(hash.startsWith("#like=") ? decoded(hash.slice(6)) : null);
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // a broken address is looked up as it is, and not found
  }
}

async function start() {
  startSession();
  startKeys();
  startSearch();
  startAdd();
  if (isNarrow()) document.querySelectorAll(".panel > .fold").forEach((part) => (part.open = false));
  byId("main").addEventListener("keydown", (event) => event.key === "Escape" && tellProblem(null));
  for (const link of document.querySelectorAll(".skip, .part a")) {
    link.addEventListener("click", (event) => {
      event.preventDefault(); // the address is the view's
      byId(link.hash.slice(1)).focus();
    });
  }
  window.addEventListener("hashchange", route);
  try {
    const found = await status();
    rememberVersions([...found.versions, ...found.retired]);
    byId("tab-add").hidden = !may("write");
    fitAdd();
    if (!location.hash) history.replaceState(null, "", "#search");
    route();
  } catch (error) {
    tellProblem(error, () => location.reload());
  }
}

start();

// --- Keys for those who do not reach for the mouse.

const KEYS = [
  ["/", "choose an image, or write a text, to search with"],
  ["Ctrl V", "search with a copied image"],
  ["Arrows", "move in the results and in the matrix"],
  ["Enter", "more like the chosen result"],
  ["i", "details of the chosen result"],
  ["g s", "go to the search"],
  ["g a", "go to adding images or texts"],
  ["g v", "go to the versions"],
  ["Esc", "close a dialog"],
  ["?", "show these keys"],
];

function startKeys() {
  let before = "";
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input:not([type=file]), textarea, select");
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const pressed = before + event.key;
    before = event.key === "g" ? "g" : "";
    if (pressed.endsWith("/")) toSearch(event);
    else if (pressed.endsWith("?")) showKeys();
    else if (pressed === "gs") location.hash = "#search";
    else if (pressed === "ga" && !byId("tab-add").hidden) location.hash = "#add";
    else if (pressed === "gv") location.hash = "#versions";
  });
  byId("show-keys").addEventListener("click", showKeys);
}

function toSearch(event) {
  event.preventDefault();
  const focus = focusQuery;
  if (!byId("search-view").hidden) return focus();
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
