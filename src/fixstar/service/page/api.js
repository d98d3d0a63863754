// Requests to the service. Every failure is a Problem with what to do; a missing key is asked for once, then retried.
import { byId, count, el } from "./dom.js";

const BASE = location.pathname.match(/^\/g\/[^/]+(?=\/)/)?.[0] ?? ""; // one of several galleries is under /g/NAME
const KEY = `fixstar-key${BASE}`;
let askForKey = null; // set by startSession

class Problem extends Error {
  constructor({ type = "about:blank", title = "The request failed", detail = "", hint = "", status = 0, next_steps = [], bad = [] }) {
    super(detail || title);
    Object.assign(this, { type, title, detail, hint, status, next_steps, bad });
  }
}

export const apiKey = {
  get: () => sessionStorage.getItem(KEY),
  set: (key) => sessionStorage.setItem(KEY, key),
  forget: () => sessionStorage.removeItem(KEY),
};

/** Tells whom to ask when the service answers 401: `(rejected) => Promise<boolean>`. */
function onMissingKey(ask) {
  askForKey = ask;
}

/** Where a path of this gallery is on the host. */
export const onHost = (path) => BASE + path;

/** An address with its query; values are encoded, null ones left out. */
export function address(path, query = {}) {
  const parts = Object.entries(query)
    .filter(([, value]) => value !== null && value !== undefined && value !== "")
    .map(([name, value]) => `${encodeURIComponent(name)}=${encodeURIComponent(value)}`);
  return parts.length ? `${path}?${parts.join("&")}` : path;
}

export const versionPath = (name, rest = "") => `/v1/versions/${encodeURIComponent(name)}${rest}`;

/** The parsed answer. `json` or `form` make it a POST, unless a `method` is given. */
export async function call(path, options = {}) {
  const response = await send(path, options);
  return response.status === 204 ? null : response.json();
}

/** The answer's bytes as a blob: pictures, where the header must travel with the request. */
export async function fetchBlob(path) {
  return (await send(path, {})).blob();
}

async function send(path, options) {
  const { json, form, signal } = options;
  const key = apiKey.get();
  const headers = { Accept: "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (json !== undefined) headers["Content-Type"] = "application/json";
  const body = json !== undefined ? JSON.stringify(json) : form;
  const method = options.method ?? (body === undefined ? "GET" : "POST");
  const response = await reach(path, { method, headers, body, signal });
  if (response.ok) return response;
  const problem = await read(response);
  if (response.status === 401 && askForKey) {
    // another request may have asked meanwhile: then its key is tried first
    if (apiKey.get() !== key || (await askForKey(key !== null))) return send(path, options);
  }
  throw problem;
}

async function reach(path, options) {
  try {
    return await fetch(onHost(path), { ...options, credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem({
      title: "The service does not answer",
      detail: "The connection failed before an answer came.",
      hint: "See that fixstar serve is running, then try again.",
    });
  }
}

async function read(response) {
  try {
    return new Problem({ ...(await response.json()), status: response.status });
  } catch {
    return new Problem({ title: `The service answered ${response.status}`, hint: "Try again; its log says more.", status: response.status });
  }
}

// --- Who is at the page: the key, kept for this tab only, and what its role may do.

const RANK = { read: 0, write: 1, admin: 2 };
let role = "read";
let latest = null;
let asking = null;

/** Whether the caller's role reaches this one. */
export const may = (wanted) => RANK[role] >= RANK[wanted];

/** Where the service stood when it was asked last, or null. */
export const latestStatus = () => latest;

/** What one item of this gallery is called: an image or a text. */
export const itemKind = () => (latest?.reads === "texts" ? "text" : "image");

/** Asks the service where it stands, and remembers who we are to it. */
export async function status() {
  const found = await call("/v1/status");
  latest = found;
  role = found.caller?.role ?? "read";
  showGallery(found);
  const account = byId("account");
  account.hidden = !apiKey.get();
  account.textContent = `Sign out ${found.caller?.name ?? ""}`;
  account.title = `Role: ${role}`;
  return found;
}

/** Which gallery this is and how large; one of several also offers the others. */
function showGallery({ name, galleries, items, deployed }) {
  const several = galleries.length > 0;
  byId("gallery-choice").hidden = !several;
  byId("gallery-name").textContent = several ? "" : name;
  byId("where").textContent = ` · ${count(items)} ${itemKind()}s · ${deployed ?? "nothing"} deployed`;
  const choice = byId("gallery");
  if (!several || choice.contains(document.activeElement)) return;
  choice.replaceChildren(...galleries.map((one) => el("option", { value: `/g/${one}/`, selected: one === name }, one)), el("option", { value: "/" }, "All galleries …"));
}

function toGallery(event) {
  const view = ["#add", "#versions"].includes(location.hash) ? location.hash : "";
  location.assign(event.target.value === "/" ? "/" : `${event.target.value}${view}`);
}

/** Begins to ask for keys where they are needed. */
export function startSession() {
  onMissingKey((rejected) => (asking ??= ask(rejected).finally(() => (asking = null))));
  byId("gallery").addEventListener("change", toGallery);
  byId("account").addEventListener("click", () => {
    apiKey.forget();
    location.reload(); // nothing that the old key showed stays on the page
  });
}

function ask(rejected) {
  const dialog = byId("sign-in");
  return new Promise((resolve) => {
    const key = el("input", { type: "password", id: "key", autocomplete: "off", required: true, spellcheck: "false" });
    const form = el(
      "form",
      { on: { submit } },
      el("h2", { id: "sign-in-title" }, "Sign in"),
      el("p", { role: rejected ? "alert" : null }, rejected ? "This key is not known here, or was removed. Try another." : "This service asks for a key."),
      el("label", {}, "Key", key),
      el("p", { class: "note" }, "The operator makes keys with ", el("code", {}, "fixstar keys add NAME --role read"), ". It is kept for this tab only."),
      el("div", { class: "buttons" }, el("button", { type: "button", on: { click: () => dialog.close() } }, "Cancel"), el("button", { class: "primary" }, "Sign in")),
    );
    let given = false;
    function submit(event) {
      event.preventDefault();
      apiKey.set(key.value.trim());
      given = true;
      dialog.close();
    }
    dialog.replaceChildren(form);
    dialog.addEventListener("close", () => resolve(given), { once: true });
    dialog.showModal();
    key.focus();
  });
}
