// The page: which view is shown, and what all views need to know.
import { hideBoard, showBoard } from "./board.js";
import { byId } from "./dom.js";
import { startKeys } from "./keys.js";
import { tellProblem } from "./problem.js";
import { showRoute, startSearch } from "./search.js";
import { startSession, status } from "./session.js";
import { rememberVersions } from "./tones.js";

function route() {
  const hash = location.hash || "#search";
  if (hash === "#main") return; // the skip link
  const versions = hash === "#versions";
  byId("search-view").hidden = versions;
  byId("versions-view").hidden = !versions;
  for (const [tab, current] of [["tab-search", !versions], ["tab-versions", versions]]) {
    if (current) byId(tab).setAttribute("aria-current", "page");
    else byId(tab).removeAttribute("aria-current");
  }
  document.title = versions ? "Versions – fixstar" : "Search – fixstar";
  tellProblem(null);
  if (versions) return showBoard();
  hideBoard();
  showRoute(hash.startsWith("#like=") ? decoded(hash.slice(6)) : null);
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
  byId("main").addEventListener("keydown", (event) => event.key === "Escape" && tellProblem(null));
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    byId("main").focus();
  });
  window.addEventListener("hashchange", route);
  try {
    const found = await status();
    rememberVersions([...found.versions, ...found.retired]);
    if (!location.hash) history.replaceState(null, "", "#search");
    route();
  } catch (error) {
    tellProblem(error, () => location.reload());
  }
}

start();
