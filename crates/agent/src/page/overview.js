// What runs, since when, and what is wrong.

import { byId, code, el, hostLink, prose, replace, table } from "./dom.js";
import { ago, because, bytes, count, counted, percent, span, time } from "./format.js";

let latest = [];

function tile(name, figure, ...more) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, el("strong", {}, figure), el("span", {}, more)));
}

/** What it does, and to what. */
function mode(status) {
  if (status.dry_run) return [`${status.mode}, dry run`, "decides and scores, but sets nothing"];
  if (status.trials == null) return [status.mode, `on ${status.cgroup}`];
  return [`${status.mode}, advice only`, `trials on ${percent(status.trials)} of the hosts, on ${status.cgroup}`];
}

function problems(status) {
  if (!status.problems.length) return el("p", { class: "good" }, "No problems.");
  return el("ul", { class: "problems" }, status.problems.map((text, at) =>
    el("li", { class: "problem" },
      el("p", {}, el("strong", {}, "Problem: "), text),
      status.fixes?.[at] && el("p", {}, el("strong", {}, "What to do: "), prose(status.fixes[at])))));
}

let shown = "";

/** The agent does not answer: what is shown is no news. */
export function unknown(why) {
  shown = "";
  replace(byId("problems"), el("p", { class: "problem" },
    el("strong", {}, "Unknown: "), `the agent does not answer (${why}). Connections keep what they have; its programs go on deciding unless they were detached.`));
}

/** Shows the status. */
export function overview(status) {
  // A live region speaks when it changes: only then it may.
  const said = JSON.stringify([status.problems, status.fixes]);
  if (said !== shown) replace(byId("problems"), problems(status));
  shown = said;
  const c = status.counters;
  const lost = c.events_dropped + status.events_lost;
  replace(byId("tiles"),
    tile("Mode", ...mode(status)),
    tile("Runs since", time(Date.now() - status.uptime_s * 1000),
      `for ${span(status.uptime_s)}`, status.session > 1 ? `, ${counted(status.session - 1, "reload")}` : ""),
    tile("Hosts known", count(status.hosts), `beyond ${count(status.hosts_max)} the least valuable go`),
    tile("Connections", count(c.established), `${count(c.changed)} got another arm than the system's, ${count(c.app_owned)} left to the application`),
    tile("Decisions", count(c.decided), `${count(c.switched)} connections moved mid-flow, ${count(c.refused)} refused by the kernel`),
    tile("Measured", count(c.scored), `of ${count(c.closed)} ended connections${c.closed ? ` (${percent(c.scored / c.closed)})` : ""}`),
    tile("Last saved", status.snapshot_age_s == null ? "not yet" : ago(status.snapshot_age_s),
      lost ? `${counted(lost, "event")} lost` : "no event lost"),
    tile("Memory", bytes(status.resident_bytes), `in the agent, ${bytes(status.map_bytes)} in the kernel`));
}

/** Adds decisions to the latest ones. */
export function decided(sums) {
  latest = [...sums.latest, ...latest].slice(0, 10);
  const box = byId("latest");
  if (!latest.length) {
    return replace(box, el("p", { class: "note" }, "None yet. Decisions for which there was evidence are listed here as they come; ", code("thalweg events"), " has all."));
  }
  const rows = latest.map((event) => [
    time(event.time_ms), hostLink(event.host, event.remote), event.arm ?? "unknown", because(event),
  ]);
  replace(box, table("Newest first", [["Time"], ["Host"], ["Arm"], ["Why"]], rows));
}

/** Takes decisions from the store, where the stream has brought none yet. */
export function begin(events) {
  if (!latest.length) latest = events.filter((event) => event.kind === "decision").slice(0, 10);
  decided({ latest: [] });
}
