// What is known of initial windows, by network.

import { ask } from "./agent.js";
import { byId, code, fault, howMany, note, replace, table } from "./dom.js";
import { ago, bar, change, count, levelName, networkName, percent } from "./format.js";

const LIMIT = 50;
// The kernel's own window, segments.
const OWN = 10;

function windowRow(network) {
  const best = network.windows.find((one) => one.segments === network.best);
  const own = network.windows.find((one) => one.segments === OWN);
  const known = network.decides && best?.evidence > 0 && network.best !== OWN;
  const shares = network.windows.filter((one) => one.next_probability > 0)
    .map((one) => `${one.segments}: ${percent(one.next_probability)}`);
  const resent = [best, best !== own && own].filter(Boolean).map((one) => percent(one.retransmitted)).join(" / ");
  return [
    networkName(network), levelName(network), network.decides ? `${network.best} segments` : `${OWN}, too little is known`,
    shares.join(", "), known ? change(best.difference_bits, best.error_bits) : "–",
    resent, count(network.largest), count(network.decided), count(network.scored), ago(network.idle_s),
  ];
}

/** What the networks of a host know of each window. */
export function explained(networks) {
  const rows = networks.flatMap((network) => network.windows.map((one) => [
    networkName(network), `${one.segments}${one.segments > network.largest ? " (not now)" : ""}`, bar(one.next_probability),
    one.segments === OWN || !(one.evidence > 0) ? "–" : change(one.difference_bits, one.error_bits),
    percent(one.retransmitted), count(one.scored), count(one.count),
  ]));
  return table("Initial windows of its networks, the narrowest first: the first that knows enough decides",
    [["Network"], ["Segments", "number"], ["Next connection", "number"], ["Time beside 10 segments", "number"],
      ["Retransmitted", "number"], ["Measured", "number"], ["Chosen", "number"]],
    rows);
}

/** Fills the part of the view. */
export async function show() {
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
      howMany(list, LIMIT, "thalweg windows"));
  } catch (error) {
    replace(box, fault(`Initial windows cannot be had: ${error.message}.`));
  }
}
