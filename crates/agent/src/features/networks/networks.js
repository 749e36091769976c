// What is known of networks: the congestion control of their new hosts.

import { ask } from "./agent.js";
import { byId, code, fault, howMany, note, replace, table } from "./dom.js";
import { ago, change, count, levelName, networkName } from "./format.js";

const LIMIT = 50;

function networkRow(network) {
  const best = network.arms.find((arm) => arm.arm === network.best);
  const known = network.decides && best?.evidence > 0;
  return [
    networkName(network), levelName(network), network.best ?? "the system's default",
    known ? change(best.difference_bits, best.error_bits) : "–",
    count(network.decided), count(network.scored), network.hosts == null ? "–" : count(network.hosts), ago(network.idle_s),
  ];
}

/** What the networks of a host without a record know. */
export function explained(networks) {
  return table("What its networks know, the narrowest first",
    [["Network"], ["Decides"], ["A new host gets"], ["Measured", "number"]],
    networks.map((network) => [
      network.name, network.decides ? "yes" : "not yet", network.best ?? "the system's default", count(network.scored),
    ]));
}

/** Fills the part of the view. */
export async function show() {
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
      howMany(list, LIMIT, "thalweg networks"));
  } catch (error) {
    replace(box, fault(`The networks cannot be had: ${error.message}.`));
  }
}
