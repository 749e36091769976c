// What is in the kernel: policy, congestion controls, and what the programs cost.

import { ask } from "./agent.js";
import { byId, code, facts, fault, note, paragraph, replace, table } from "./dom.js";
import { bits, bytes, count, counted, micros, nanos, percent, time } from "./format.js";

const STATES = {
  system: "the kernel's own", loaded: "in BPF, loaded by Thalweg", draining: "in BPF, withdrawn: only open connections have it",
  lost: "in BPF, without its link: new connections cannot have it",
  loadable: "comes with Thalweg, not loaded", unavailable: "cannot run on this kernel",
};

function policy(report) {
  if (!report) return [note("No policy is in force. ", code("thalweg policy apply FILE"), " puts one there.")];
  const failures = report.rules.flatMap((rule) => (rule.failures ?? []).map((failure) => [rule.name, failure]));
  return [
    facts([
      ["Name", report.name], ["File", report.file], ["In force since", time(report.applied_ms)],
      ["Mode", report.dry_run ? "dry run: matches are counted, nothing is set" : "settings are applied"],
      report.map_bytes != null && ["Kernel memory", bytes(report.map_bytes)],
    ]),
    table("Rules, in the order of the file", [["Rule", "long"], ["Flows", "number"], ["Set", "number"], ["Failed", "number"]],
      report.rules.map((rule) => [rule.name + (rule.never ? " (never)" : ""), count(rule.matched), count(rule.done), count(rule.failed)])),
    failures.length > 0 && table("Settings that failed", [["Rule", "long"], ["Key"], ["Error"], ["Times", "number"]],
      failures.map(([name, failure]) => [name, failure.key, `${failure.error} (${failure.option}, ${failure.stage})`, count(failure.count)])),
  ];
}

function controls(list) {
  const shown = list.filter((one) => one.state !== "unavailable");
  const model = (one) => (one.model ? `, model ${one.model.name}` : "");
  return [table("On this machine", [["Name"], ["State"], ["Open connections", "number"]],
    shown.map((one) => [one.name, (STATES[one.state] ?? one.state) + model(one), one.use && one.state !== "loadable" ? count(one.use.flows) : "–"]))];
}

let before = null;

function programs(kernel) {
  const list = kernel.programs;
  if (!kernel.statistics) {
    return [
      paragraph("The kernel measures run times only if it is told to. It costs some tens of nanoseconds a run:"),
      paragraph(code("sysctl kernel.bpf_stats_enabled=1")),
      note(`Loaded: ${list.map((one) => one.name).join(", ") || "no program"}. A 0 in place of the 1 turns it off again.`),
    ];
  }
  const last = before;
  before = { at: performance.now(), of: new Map(list.map((one) => [one.id, one])) };
  const rows = list.map((one) => {
    const then = last?.of.get(one.id);
    const spent = then ? (one.run_time_ns - then.run_time_ns) / ((before.at - last.at) * 1e6) : null;
    return [one.name, count(one.runs), one.runs ? nanos(one.run_time_ns / one.runs) : "–",
      spent === null ? "measuring …" : percent(Math.max(0, spent))];
  });
  return [table("Since they were loaded", [["Program"], ["Runs", "number"], ["Time a run", "number"], ["Of one processor now", "number"]], rows),
    note("The kernel measures each run, which itself costs: ", code("sysctl kernel.bpf_stats_enabled=0"), " turns it off.")];
}

/** Fills the view. */
export async function kernel() {
  let found;
  try {
    found = await ask("v1/kernel");
  } catch (error) {
    for (const id of ["cc", "cost"]) replace(byId(id), note("Unknown."));
    return replace(byId("policy"), fault(`This cannot be had: ${error.message}.`));
  }
  for (const [id, part] of [["policy", () => policy(found.policy)], 
    ["cc", () => controls(found.cc)], ["cost", () => programs(found)]]) {
    replace(byId(id), ...part());
  }
  if (found.unreadable?.length) byId("policy").append(...found.unreadable.map((text) => fault(`Not readable: ${text}.`)));
}
