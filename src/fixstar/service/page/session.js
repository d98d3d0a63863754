// Who is at the page: the key, kept for this tab only, and what its role may do.
import { apiKey, call, onMissingKey } from "./api.js";
import { byId, el } from "./dom.js";
import { count } from "./format.js";

const RANK = { read: 0, write: 1, admin: 2 };
let role = "read";
let asking = null;

/** Whether the caller's role reaches this one. */
export const may = (wanted) => RANK[role] >= RANK[wanted];

/** Asks the service where it stands, and remembers who we are to it. */
export async function status() {
  const found = await call("/v1/status");
  role = found.caller?.role ?? "read";
  byId("where").textContent = `${found.name} · ${count(found.items)} images · ${found.deployed ?? "nothing"} deployed`;
  const account = byId("account");
  account.hidden = !apiKey.get();
  account.textContent = `Sign out ${found.caller?.name ?? ""}`;
  account.title = `Role: ${role}`;
  return found;
}

/** Begins to ask for keys where they are needed. */
export function startSession() {
  onMissingKey((rejected) => (asking ??= ask(rejected).finally(() => (asking = null))));
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
