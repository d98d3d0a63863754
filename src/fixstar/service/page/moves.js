// Check, deploy, roll back: what each will do is said before it is done.
import { call, versionPath } from "./api.js";
import { confirm } from "./dialogs.js";
import { count } from "./format.js";

const NOT_PASSED = { refuse: "Its check refused it: queries would lose.", "missing evidence": "Its check could not decide: evidence is missing." };
const REFUSED = "Not shown to be compatible"; // the title of the gate's problem
const REASON = "Why deploy it all the same? This is kept in the history.";

/** Starts a check; it goes on as a job. */
export async function runCheck(version) {
  await call(versionPath(version, "/check"), { json: {} });
  return `The check of ${version} was started.`;
}

/** Words where it was done, null where the visitor thought better of it. */
export async function deploy({ name, check }, status) {
  const passed = check === "pass";
  const says = [
    `Queries are embedded by ${name} from now on${status.deployed ? `, instead of ${status.deployed}` : ""}.`,
    `Nothing is re-embedded: ${vectors(status)} stay as they are and are searched.`,
    passed ? "Its check passed." : (NOT_PASSED[check] ?? "It was never checked against the vectors that are there."),
    "You can roll back at any time.",
  ];
  const act = (force) => call("/v1/deploy", { json: { version: name, force } });
  const forced = { title: `Deploy ${name} against its check?`, says, reason: REASON, verb: "Deploy all the same", danger: true, act };
  const plain = { title: `Deploy ${name}?`, says, verb: `Deploy ${name}`, act, onProblem: (problem) => (problem.title === REFUSED ? forced : null) };
  return (await confirm(passed ? plain : forced)) && `${name} is deployed.`;
}

export async function rollBack(status) {
  const done = await confirm({
    title: `Roll back to ${status.previous}?`,
    says: [
      `Queries are embedded by ${status.previous} from now on, instead of ${status.deployed}.`,
      `Nothing is re-embedded: ${vectors(status)} stay as they are and are searched.`,
      "The history keeps this move.",
    ],
    verb: `Roll back to ${status.previous}`,
    act: () => call("/v1/rollback", { json: {} }),
  });
  return done && `Rolled back to ${status.previous}.`;
}

function vectors({ vectors: held }) {
  const parts = Object.entries(held).filter(([, number]) => number > 0).map(([name, number]) => `${count(number)} of ${name}`);
  return parts.length ? `the vectors (${parts.join(", ")})` : "the vectors";
}
