// What is known of remote hosts, and the story of one.

import { byId, code, el, facts, fault, hostLink, note, paragraph, replace, table } from "./dom.js";
import { ago, bar, because, bytes, count, counted, micros, percent, rate, three, time } from "./format.js";
import { ask } from "./agent.js";
import { Arms } from "./arms.js";

const LIMIT = 50;
const EVENTS = 30;
// Parts of an explanation that are no feature's.
const OWN = ["host", "egress", "summary", "recent", "events_share"];

const ENDS = {
  "fin-local": "closed by this machine", "fin-remote": "closed by the peer", reset: "reset",
  timeout: "timed out", switch: "moved to another arm", stretch: "measured on its way",
};

function measured(event) {
  const m = event.measurement;
  return `${ENDS[m.end] ?? m.end}: ${bytes(m.bytes)} in ${micros(m.duration_us)}, ${rate(m.rate_bytes_per_s)}, ` +
    `round trip ${micros(m.srtt_us)}, ${count(m.retrans)} of ${counted(m.segs_out, "segment")} retransmitted`;
}

/** A connection's initial window, where these are learned. */
function firstWindow({ window: first }) {
  if (!first) return "";
  const chosen = first.chosen === first.segments ? "" : `${first.chosen} were chosen, `;
  return `; initial window ${first.segments} segments (${chosen}probability ${percent(first.propensity)})`;
}

const typical = (host) => host.arms.find((arm) => arm.arm === host.best && arm.evidence > 0);

/** Fills the list of hosts. */
async function hosts(sort) {
  const box = byId("hosts");
  // An answer may come when the reader has gone on.
  const late = () => byId("sort").value !== sort;
  let list;
  try {
    list = (await ask(`v1/hosts?sort=${sort}&limit=${LIMIT}`)).hosts.slice(0, LIMIT);
  } catch (error) {
    return late() || replace(box, fault(`The hosts cannot be had: ${error.message}.`));
  }
  if (late()) return;
  if (!list.length) {
    byId("hosts-note").textContent = "";
    return replace(box, note("No host is known yet: the first connection makes its record."));
  }
  byId("hosts-note").textContent = list.length < LIMIT
    ? `${counted(list.length, "host")}.`
    : `The first ${LIMIT}. thalweg hosts lists all.`;
  const rows = list.map((host) => {
    const best = typical(host);
    return [
      hostLink(host.address), host.best ?? "none yet", count(host.connections),
      best ? rate(best.rate_bytes_per_s) : "–", host.min_rtt_us ? micros(host.min_rtt_us) : "–",
      best ? `${best.cost_bits.toFixed(2)} bits` : "–", ago(host.idle_s),
    ];
  });
  replace(box, table("Hosts; the name leads to its story",
    [["Host"], ["Costs least"], ["Connections", "number"], ["Typical rate", "number"], ["Lowest RTT", "number"], ["Cost", "number"], ["Last used"]], rows));
}

function against(arm, best) {
  if (!(arm.evidence > 0)) return "not measured";
  if (!best || arm === best) return best ? "the best" : "–";
  const gap = arm.cost_bits - best.cost_bits;
  return gap < 0
    ? `${three(-gap)} bits less, but not by enough`
    : `${three(gap)} bits more: ${three(2 ** gap)} times as slow`;
}

function armTable(host) {
  const best = typical(host);
  const shown = (arm, text) => (arm.evidence > 0 ? text : "–");
  const unsteady = (arm) => (arm.unsteady ? " (much slower now and then)" : "");
  const remark = (arm) => (arm.harmful ? " (gains at the expense of others)" : unsteady(arm));
  return table("What each arm costs towards this host",
    [["Arm"], ["Next connection", "number"], ["Cost", "number"], ["Beside the best"], ["Rate", "number"], ["RTT", "number"], ["Retransmitted", "number"], ["Measured", "number"], ["Chosen", "number"]],
    host.arms.map((arm) => [
      arm.arm + remark(arm), bar(arm.next_probability),
      shown(arm, `${arm.cost_bits.toFixed(2)} ± ${arm.deviation_bits.toFixed(2)} bits`), against(arm, best),
      shown(arm, rate(arm.rate_bytes_per_s)), shown(arm, micros(arm.srtt_us)),
      shown(arm, percent(arm.retransmitted)), count(arm.scored), count(arm.count),
    ]));
}

/** Whether an explanation is of a host without record, by what its networks know. */
const isStranger = ({ host }) => !host.connections && !host.scored;

/** Tables of what features know of a host, by their scripts. */
function ofFeatures(one) {
  const names = Object.keys(one).filter((name) => !OWN.includes(name));
  return Promise.all(names.map((name) => import(`./${name}.js`).then((part) => part.explained(one[name]), () => null)));
}

async function told(one, several) {
  const { host, summary } = one;
  const more = await ofFeatures(one);
  if (isStranger(one)) return [el("p", { class: "summary" }, summary), more];
  return [
    several && el("h2", {}, `Network namespace ${host.netns}`),
    el("p", { class: "summary" }, summary),
    facts([
      ["Connections", counted(host.connections, "connection"), ", the last ", ago(host.idle_s)],
      ["Measured", `${counted(host.scored, "connection")}, ${count(host.switched)} moved mid-flow`],
      ["Lowest round-trip time", host.min_rtt_us ? micros(host.min_rtt_us) : "none yet"],
      host.base_rtt_us > 0 && ["Queue under the system's default", `${three(2 ** host.queue_bits)} times the ${micros(host.base_rtt_us)} of late`],
      ["Highest rate", rate(host.max_rate_bytes_per_s)],
    ]),
    host.arms.length ? armTable(host) : note("No arm has been chosen or measured yet."),
    host.arms.length > 0 && note("Cost in bits: one less is twice the rate. ± is the mean deviation."),
    more,
  ];
}

let chart = null;

/** Tells the story of a host. */
async function story(address) {
  const title = byId("host-title");
  if (title.textContent !== address) {
    title.textContent = address;
    for (const id of ["host", "host-arms", "host-story"]) replace(byId(id), note("Asking the agent …"));
    chart = null;
  }
  const late = () => title.textContent !== address;
  let found;
  try {
    found = await ask(`v1/hosts/${encodeURIComponent(address)}`);
  } catch (error) {
    if (late()) return;
    replace(byId("host-arms"));
    replace(byId("host-story"));
    const hint = error.status === 404
      ? paragraph("It had no connection since learning began, or gave way to others. ", code("thalweg hosts"), " lists all.")
      : null;
    return replace(byId("host"), fault(`${error.message}.`), hint);
  }
  const texts = await Promise.all(found.map((one) => told(one, found.length > 1)));
  if (late()) return;
  // The record may cover a prefix; events bear its name.
  const name = found[0].host.address;
  if (found.every(isStranger)) {
    replace(byId("host-arms"));
    replace(byId("host-story"));
    return replace(byId("host"), texts.flat());
  }
  replace(byId("host"), name !== address && note(`Its record is that of ${name}.`), texts.flat());
  chart ??= new Arms(byId("host-arms"), name);
  chart.load();
  await connections(name, late);
}

async function connections(name, late) {
  const box = byId("host-story");
  let events;
  try {
    events = await ask(`v1/events?host=${encodeURIComponent(name)}&limit=${EVENTS}`);
  } catch (error) {
    return late() || replace(box, fault(`Its events cannot be had: ${error.message}.`));
  }
  if (late()) return;
  if (!events.length) return replace(box, note("No event of it is stored: its connections were too few, too small, or too long ago."));
  const rows = events.map((event) => [
    time(event.time_ms), `${event.remote}:${event.remote_port}${event.passive ? ", accepted" : ""}`, event.arm ?? "unknown",
    (event.measurement ? measured(event) : `Decision: ${because(event)}`) + firstWindow(event),
  ]);
  replace(box, table(`The latest ${EVENTS} decisions and measurements, newest first`,
    [["Time"], ["Peer", "long"], ["Arm"], ["What happened"]], rows));
}

/** Fills a view. */
export const show = (view, address) => (view === "host" ? story(address) : hosts(byId("sort").value));

byId("sort").addEventListener("change", () => hosts(byId("sort").value));
byId("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const wanted = byId("address").value.trim();
  const good = /^[0-9a-f.:/]+$/i.test(wanted);
  byId("search-fault").textContent = good ? "" : `Expected an address such as 192.0.2.7 or 2001:db8::7.`;
  if (good) location.hash = `host/${encodeURIComponent(wanted)}`;
  else byId("address").focus();
});
