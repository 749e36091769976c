// What the learner gains against its control group.

import { byId, el, fault, note, paragraph, replace, table } from "./dom.js";
import { ask } from "./agent.js";
import { count, counted, span } from "./format.js";

const MEASURES = {
  time: "Time",
  retransmitted: "Retransmitted segments",
  failed: "Failed connections",
  rtt: "RTT over the lowest",
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

/** Shows the comparisons of all connections. */
export async function gain() {
  const box = byId("gain");
  try {
    const found = await ask("v1/gain");
    const all = found.groups.find((group) => group.by === "all");
    const columns = [["Measure"], ["Effect", "number"], ["Interval", "number"], ["Control", "number"], ["Verdict"]];
    replace(box,
      paragraph(found.summary),
      found.reverts.map(taken),
      all && all.rows.length > 0 && table("Treated connections less the control group; control in hosts × hours", columns, all.rows.map(cells)),
      found.left_out > 0 && note(`${counted(found.left_out, "connection")} left out: more hosts than can be kept.`));
  } catch (error) {
    replace(box, fault(`The gain cannot be had: ${error.message}.`));
  }
}
