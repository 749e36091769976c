// What is known of networks: the congestion control of their new hosts, and initial windows.

import { byId, code, fault, note, replace, table } from "./dom.js";
import { ago, bar, count, percent } from "./format.js";
import { ask } from "./agent.js";

const LIMIT = 50;
// The kernel's own window, segments.
const OWN = 10;
const LEVELS = { prefix: "prefix", named: "named", service: "service", namespace: "all hosts",
  "fleet-prefix": "prefix, told by other agents", "fleet-named": "named, told by other agents" };

const named = (network) => (network.container ? `${network.name} (${network.container})` : network.name);
const kind = (network) => LEVELS[network.level] ?? network.level;

/** A difference in bits, and its standard error, as times in per cent. */
function change(bits, error) {
  const figure = (value) => (100 * (2 ** value - 1)).toFixed(1);
  return `${bits > 0 ? "+" : ""}${figure(bits)} % ± ${figure(error)} %`;
}

function networkRow(network) {
  const best = network.arms.find((arm) => arm.arm === network.best);
  const known = network.decides && best?.evidence > 0;
  return [
    named(network), kind(network), network.best ?? "the system's default",
    known ? change(best.difference_bits, best.error_bits) : "–",
    count(network.decided), count(network.scored), network.hosts == null ? "–" : count(network.hosts), ago(network.idle_s),
  ];
}

function windowRow(network) {
  const best = network.windows.find((one) => one.segments === network.best);
  const own = network.windows.find((one) => one.segments === OWN);
  const known = network.decides && best?.evidence > 0 && network.best !== OWN;
  const shares = network.windows.filter((one) => one.next_probability > 0)
    .map((one) => `${one.segments}: ${percent(one.next_probability)}`);
  const resent = [best, best !== own && own].filter(Boolean).map((one) => percent(one.retransmitted)).join(" / ");
  return [
    named(network), kind(network), network.decides ? `${network.best} segments` : `${OWN}, too little is known`,
    shares.join(", "), known ? change(best.difference_bits, best.error_bits) : "–",
    resent, count(network.largest), count(network.decided), count(network.scored), ago(network.idle_s),
  ];
}

/** What the networks of a host know of each window. */
export function windowTable(networks) {
  const rows = networks.flatMap((network) => network.windows.map((one) => [
    named(network), `${one.segments}${one.segments > network.largest ? " (not now)" : ""}`, bar(one.next_probability),
    one.segments === OWN || !(one.evidence > 0) ? "–" : change(one.difference_bits, one.error_bits),
    percent(one.retransmitted), count(one.scored), count(one.count),
  ]));
  return table("Initial windows of its networks, the narrowest first: the first that knows enough decides",
    [["Network"], ["Segments", "number"], ["Next connection", "number"], ["Time beside 10 segments", "number"],
      ["Retransmitted", "number"], ["Measured", "number"], ["Chosen", "number"]],
    rows);
}

/** How many there are, and what has all. */
function howMany(list, command) {
  return list.length < LIMIT ? null : note(`The ${LIMIT} with most measurements. `, code(command), " lists all.");
}

async function congestionControls() {
  const box = byId("networks");
  try {
    const { networks: list } = await ask(`v1/networks?limit=${LIMIT}`);
    if (!list.length) {
      return replace(box, note("Nothing is known of networks yet, or they are not learned (", code("[networks] enabled"), ")."));
    }
    replace(box,
      table("Networks, the narrowest first; time per byte beside that of the system's default on the same hosts",
        [["Network", "long"], ["Level"], ["A new host gets"], ["Time", "number"], ["Decided", "number"], ["Measured", "number"], ["Hosts", "number"], ["Last"]],
        list.map(networkRow)),
      howMany(list, "thalweg networks"));
  } catch (error) {
    replace(box, fault(`The networks cannot be had: ${error.message}.`));
  }
}

async function initialWindows() {
  const box = byId("windows");
  try {
    const { segments, networks: list } = await ask(`v1/windows?limit=${LIMIT}`);
    if (!segments.length) {
      return replace(box, note("They are not learned: ", code("[initial_window] enabled = false"), "."));
    }
    const among = note(`Chosen among ${segments.join(", ")} segments.`);
    if (!list.length) return replace(box, among, note("Nothing is known yet: no transfer of more than 10 segments and up to 256 KiB has ended."));
    replace(box, among,
      table("Networks, the narrowest first; time of transfers and retransmissions beside those with 10 segments",
        [["Network", "long"], ["Level"], ["A connection gets"], ["Shares"], ["Time", "number"], ["Retransmitted", "number"],
          ["At most now", "number"], ["Decided", "number"], ["Measured", "number"], ["Last"]],
        list.map(windowRow)),
      howMany(list, "thalweg windows"));
  } catch (error) {
    replace(box, fault(`Initial windows cannot be had: ${error.message}.`));
  }
}

/** Fills the view. */
export async function networks() {
  await Promise.all([congestionControls(), initialWindows()]);
}
