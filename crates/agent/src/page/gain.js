// What the learner gains against its control group, and what would be best.

import { byId, el, fault, note, paragraph, replace, table } from "./dom.js";
import { ask } from "./agent.js";
import { count, counted, percent, span } from "./format.js";

const MEASURES = {
  time: "Time",
  retransmitted: "Retransmitted segments",
  failed: "Failed connections",
  rtt: "RTT over the lowest",
};
const SOURCES = {
  own: "The same of hosts whose hour began with what this agent measured",
  fleet: "The same of hosts whose hour began with what other agents told",
};
const WORDS = { better: "better", worse: "worse", same: "no difference that matters", unknown: "not known yet" };

function effect(value, row) {
  const figure = Math.abs(value) >= 9.95 ? value.toFixed(0) : value.toFixed(2);
  return `${value > 0 ? "+" : ""}${figure} ${row.unit === "percent" ? "%" : "points"}`;
}

function cells(row) {
  const known = row.low != null && row.high != null;
  return [
    row.size ? `… of ${row.size}` : MEASURES[row.measure] ?? row.measure,
    row.effect == null ? "" : effect(row.effect, row),
    known ? `${effect(row.low, row)} to ${effect(row.high, row)}` : "too few",
    count(row.control),
    WORDS[row.verdict] ?? row.verdict,
  ];
}

function taken(revert) {
  const what = revert.arm ? `No connection gets ${revert.arm}` : "Nothing is explored";
  return el("p", { class: "problem" }, `${what} for another ${span(revert.left_s)}. ${revert.why}.`);
}

/** A table of comparisons. */
export function comparison(caption, rows) {
  const columns = [["Measure"], ["Effect", "number"], ["Interval", "number"], ["Control", "number"], ["Verdict"]];
  return table(caption, columns, rows.map(cells));
}

/** Shows the comparisons of all connections. */
export async function gain() {
  const box = byId("gain");
  try {
    const found = await ask("v1/gain?by=source");
    const all = found.groups.find((group) => group.by === "all");
    const sources = found.groups.filter((group) => group.by === "source" && group.rows.length > 0);
    replace(box,
      paragraph(found.summary),
      found.reverts.map(taken),
      all && all.rows.length > 0 && comparison("Treated connections less the control group; control in hosts × hours", all.rows),
      sources.map((source) => comparison(SOURCES[source.name] ?? source.name, source.rows)),
      found.left_out > 0 && note(`${counted(found.left_out, "connection")} left out: more hosts than can be kept.`));
  } catch (error) {
    replace(box, fault(`The gain cannot be had: ${error.message}.`));
  }
}

const BY = { trial: "trial", learner: "the learner", itself: "itself: no experiment" };
const FOUND = { ...WORDS, better: "takes less time", price: "takes less time, at a price", worse: "takes more time" };

function choice(one) {
  const time = one.rows.find((row) => row.measure === "time");
  const known = time && time.low != null && time.high != null;
  return [
    one.arm ?? "the learner's choice",
    BY[one.by] ?? one.by,
    time?.effect == null ? "" : effect(time.effect, time),
    known ? `${effect(time.low, time)} to ${effect(time.high, time)}` : "too few",
    time ? count(time.treated) : "0",
    (FOUND[one.verdict] ?? one.verdict) + (one.ended ? "; tried no more" : ""),
  ];
}

function limits(found, all) {
  const known = all?.limits;
  if (!known) return found.limits_untold && note(found.limits_untold);
  const shares = `Time with data outstanding is limited by the receiver's window (${percent(known.receiver)}), `
    + `the send buffer (${percent(known.buffer)}), or the network (${percent(known.network)}). `
    + `Of the time open ${percent(known.idle)} is idle.`;
  return [paragraph(shares), known.findings.map((one) => el("p", { class: "problem" }, one.words))];
}

/** Shows what would be best for all connections, and what holds them up. */
export async function advice() {
  const box = byId("advice");
  try {
    const found = await ask("v1/advise");
    const all = found.groups.find((group) => group.by === "all");
    // Under the learner the table of the gain has the rest.
    const tried = found.source === "learner" ? [] : all?.choices ?? [];
    const columns = [["Arm"], ["Given by"], ["Time", "number"], ["Interval", "number"], ["Clusters", "number"], ["Verdict"]];
    replace(box,
      found.source !== "learner" && paragraph(found.summary),
      tried.length > 0 && table(`Compared with ${found.system_arm}; clusters in hosts × hours`, columns, tried.map(choice)),
      limits(found, all));
  } catch (error) {
    replace(box, fault(`The advice cannot be had: ${error.message}.`));
  }
}
