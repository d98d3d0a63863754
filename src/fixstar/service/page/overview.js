// Where the workspace stands: what answers, and whose vectors are searched.
import { byId, el, renew } from "./dom.js";
import { count, percent } from "./format.js";
import { may } from "./session.js";
import { badge, tone } from "./tones.js";

export function showOverview(status, actions) {
  const held = Object.entries(status.vectors).filter(([, number]) => number > 0);
  const bar = el("div", { class: "sharebar", "aria-hidden": "true" }, held.map(([name]) => el("i", { class: tone(name) })));
  held.forEach(([, number], row) => bar.children[row].style.setProperty("flex-grow", number));
  const legend = held.map(([name, number]) => el("li", {}, badge(name), ` ${count(number)} (${percent(number / status.items, 0)})`));
  renew(
    byId("overview"),
    el(
      "div",
      { class: "answering" },
      el("p", { class: "note" }, "Queries are answered by"),
      el("p", { class: "deployed" }, status.deployed ? badge(status.deployed) : "no version yet"),
      status.previous && el("p", { class: "note" }, "before: ", badge(status.previous)),
      status.previous && may("admin") && el("button", { type: "button", id: "roll-back", data: { focus: "roll-back" }, on: { click: actions.rollBack } }, `Roll back to ${status.previous} …`),
    ),
    el(
      "div",
      { class: "vectors" },
      el("p", { class: "note" }, `${count(status.items)} vectors in the gallery, by the version that made them`),
      held.length ? bar : el("p", {}, "The gallery is empty. Fill it with ", el("code", {}, "fixstar index IMAGES")),
      el("ul", { class: "legend" }, legend),
    ),
  );
}
