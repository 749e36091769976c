// The fleet: this agent's place in it, all agents, and what they gain together.

import { ask } from "./agent.js";
import { byId, code, el, facts, fault, note, paragraph, replace, table } from "./dom.js";
import { ago, bytes, count, counted } from "./format.js";
import { comparison } from "./gain.js";

// Agents say how they are every ten minutes, and each question is about all of them.
const AGAIN_MS = 60_000;
const MOST = 200;

let asked = 0;

function place(mine) {
  const traffic = ({ messages, bytes: sum }) => `${counted(messages, "message")}, ${bytes(sum)}`;
  const last = mine.last_fault;
  return facts([
    ["This agent", mine.agent],
    ["Labels", mine.labels.join(" ")],
    ["Server", mine.server ?? "none: the agent goes on without the fleet"],
    ["Tells", mine.shares ? `of ${counted(mine.told, "network")}` : "nothing"],
    ["Takes", mine.takes
      ? `what ${counted(mine.agents, "agent")} tell of ${counted(mine.networks, "network")}; ${counted(mine.in_force, "record")} in force`
      : "nothing"],
    ["Sent", traffic(mine.sent)],
    ["Received", traffic(mine.received)],
    last && ["Last fault", `${last.kind}: ${last.text}, `, ago(last.age_s)],
  ]);
}

function row(agent) {
  const problems = agent.unreadable ? [`Not readable: ${agent.unreadable}`] : agent.problems;
  return [
    agent.agent,
    agent.version ?? "–",
    agent.labels.join(" "),
    [ago(agent.age_s), agent.silent && ", silent"],
    agent.policies.map((one) => `${one.label} ${one.number} ${one.stage}`).join(", "),
    problems.length > 0 && el("span", { class: "fault" }, problems.join("; ")),
  ];
}

function agents({ agents: list, versions, silent, with_problems: ill }) {
  // Those that somebody should look at come first.
  const weight = (one) => Number(one.unreadable != null || one.problems.length > 0) * 2 + Number(one.silent);
  const first = [...list].sort((a, b) => weight(b) - weight(a)).slice(0, MOST);
  return [
    paragraph(`${counted(list.length, "agent")}, ${counted(Object.keys(versions).length, "version")}, ${count(silent)} silent, ${count(ill)} with problems.`),
    list.length > 0 && table("Agents, those with problems first",
      [["Agent"], ["Version"], ["Labels"], ["Status"], ["Policies"], ["Problems", "long"]], first.map(row)),
    list.length > MOST && note(`${MOST} of them. `, code("thalweg fleet status"), " lists all."),
  ];
}

function compared(one) {
  const title = one.rule ? `Flows that rule ${one.rule} took less those that it left alone` : "Treated connections less the control groups of all agents";
  const [time] = one.spread.filter((it) => it.measure === "time" && it.known > 0);
  return [
    paragraph(one.rule && `Rule ${one.rule}. `, one.summary),
    one.rows.length > 0 && comparison(`${title}; in hosts × hours`, one.rows),
    time && note(`Time by agents' own intervals: ${count(time.better)} better, ${count(time.worse)} worse of ${count(time.known)}.`),
    one.hinges_on.length > 0 && note(`Without any one of these a verdict would be another: ${one.hinges_on.slice(0, 20).join(", ")}.`),
  ];
}

function gain(found) {
  return [
    [found.all, ...found.rules].map(compared),
    found.without > 0 && note(`${counted(found.without, "agent")} without a control group, or without connections in it.`),
    found.silent.length > 0 && note(`Counted, though silent for more than an hour: ${found.silent.map((one) => one.agent).slice(0, 20).join(", ")}.`),
    found.left_out.slice(0, 20).map((one) => el("p", { class: "problem" }, `${one.agent} is left out: ${one.why}.`)),
  ];
}

async function part(id, path, what, shown) {
  try {
    replace(byId(id), shown(await ask(path)));
  } catch (error) {
    replace(byId(id), fault(`${what} cannot be had: ${error.message}.`));
    asked = 0;
  }
}

/** Fills the view, at most once a minute. */
export async function show() {
  if (Date.now() - asked < AGAIN_MS) return;
  asked = Date.now();
  await part("fleet-place", "v1/fleet", "This agent's place", place);
  await part("fleet-agents", "v1/fleet/agents", "The agents", agents);
  await part("fleet-gain", "v1/fleet/gain", "The gain", gain);
}
