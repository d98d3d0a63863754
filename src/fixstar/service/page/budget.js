// How much of the gallery a backfill re-embeds: a share, a number, or all. The same rule as the service's.
import { count } from "./format.js";

const ALLOWED = "A share above 0% and up to 100% such as 10%, a number of items from 1 on such as 5000, or all.";

/** What is wrong with a budget as it was written, or null. */
export function budgetProblem(text) {
  const [, number, sign] = /^([0-9]{1,12}(?:\.[0-9]{1,4})?)(%?)$/.exec(text) ?? [];
  let seen = null;
  if (text === "all") return null;
  if (number === undefined) seen = text ? `“${text}” is neither.` : "Nothing is written there.";
  else if (Number(number) === 0) seen = `“${text}” is nothing: no vector would be re-embedded.`;
  else if (sign && Number(number) > 100) seen = `“${text}” is more than everything.`;
  else if (!sign && number.includes(".")) seen = `“${text}” is no whole number of items.`;
  return seen && { title: "This budget cannot be used", detail: seen, hint: ALLOWED };
}

/** How many of so many items a budget means. */
export function budgetItems(text, total) {
  if (text === "all") return total;
  const number = Number.parseFloat(text);
  return Math.min(total, text.endsWith("%") ? -Math.floor((-total * number) / 100) : number);
}

/** What is known about the time that images take: the limit asked for, or the pace of the last backfill; else nothing. */
export function timeWords(images, rate, measured) {
  if (rate) return `, ${count(rate)} a second at most: ${span(images / rate)} or longer`;
  return measured ? `: about ${span(images / measured)}, at the ${count(Number(measured.toPrecision(2)))} images a second of the last backfill` : "";
}

function span(seconds) {
  if (seconds < 100) return `${Math.max(1, Math.round(seconds))} s`;
  return seconds < 6000 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}
