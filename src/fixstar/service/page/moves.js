// Check, deploy, roll back: what each will do is said before it is done.
import { call, versionPath } from "./api.js";
import { confirm } from "./dialogs.js";
import { count, plural } from "./format.js";

const NOT_PASSED = { refuse: "Its check refused it: queries would lose.", "missing evidence": "Its check could not decide: evidence is missing." };
const REFUSED = "/problems/not-compatible"; // the gate's problem
const MOVED = "/problems/deployment-moved"; // the dialog spoke of a deployment that has changed since
const ENDS = "The backfill that is under way ends; what it has re-embedded stays so.";
const REASON = "Why deploy it all the same? This is kept in the history.";

/** Starts a check; it goes on as a job. */
export async function runCheck(version, rules = {}) {
  await call(versionPath(version, "/check"), { json: rules });
  return `The check of ${version} was started.`;
}

/** Words where it was done, null where the visitor thought better of it; `moved` runs where others were faster. */
export async function deploy({ name, check, unreached }, status, backfilling, moved) {
  const passed = check === "pass";
  const says = [
    `Queries are embedded by ${name} from now on${status.deployed ? `, instead of ${status.deployed}` : ""}.`,
    `Nothing is re-embedded: ${vectors(status, unreached)} stay as they are and are searched.`,
    ...notSearched(unreached, name),
    passed ? "Its check passed." : (NOT_PASSED[check] ?? "It was never checked against the vectors that are there."),
    ...(backfilling ? [ENDS] : []),
    "You can roll back at any time.",
  ];
  const act = (force) => move("/v1/deploy", { version: name, force, deployed: status.deployed }, moved);
  const forced = { title: `Deploy ${name} against its check?`, says, reason: REASON, verb: "Deploy all the same", danger: true, act };
  const plain = { title: `Deploy ${name}?`, says, verb: `Deploy ${name}`, act, onProblem: (problem) => (problem.type === REFUSED ? forced : null) };
  const done = await confirm(passed ? plain : forced);
  return done && [`${done.version} is deployed.`, ...notSearched(done.unreached, done.version)].join(" ");
}

/** Asks the service what a rollback would do now, says that, and lets it happen only so. */
export async function rollBack(status, moved) {
  const { deployed, to, unchecked, unreached, cancelled } = await call("/v1/rollback");
  const done = await confirm({
    title: `Roll back to ${to}?`,
    says: [
      `Queries are embedded by ${to} from now on, instead of ${deployed}.`,
      `Nothing is re-embedded: ${vectors(status, unreached)} stay as they are and are searched.`,
      ...notSearched(unreached, to),
      ...Object.entries(unchecked).map(([name, number]) => `${plural(number, "vector")} made by ${name} ${number === 1 ? "is" : "are"} then searched unchecked: no check has tried ${to}'s queries on ${number === 1 ? "it" : "them"}.`),
      ...(cancelled ? [ENDS] : []),
      "The history keeps this move.",
    ],
    verb: `Roll back to ${to}`,
    act: () => move("/v1/rollback", { deployed, to }, moved),
  });
  return done && [`Rolled back to ${done.version}.`, ...Object.entries(done.unchecked).map(([name, number]) => `${plural(number, "vector")} of ${name} ${number === 1 ? "is" : "are"} searched unchecked.`), ...notSearched(done.unreached, done.version), ...(done.cancelled ? ["The backfill ends."] : [])].join(" ");
}

/** Where the deployment is not as the dialog says, the problem stands in it, and behind it what is the case now. */
async function move(path, json, moved) {
  try {
    return await call(path, { json });
  } catch (problem) {
    if (problem.type === MOVED) moved();
    throw problem;
  }
}

function notSearched(unreached, version) {
  return Object.entries(unreached).map(([name, number]) => `${plural(number, "vector")} made by ${name} ${number === 1 ? "is" : "are"} not searched: no adapter leads there from ${version}.`);
}

function vectors({ vectors: held }, unreached) {
  const parts = Object.entries(held).filter(([name, number]) => number > 0 && !(name in unreached)).map(([name, number]) => `${count(number)} of ${name}`);
  return parts.length ? `the vectors (${parts.join(", ")})` : "the vectors";
}
