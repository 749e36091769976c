# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A rate controller of your own in the simulator: flows hold queueing delay * sqrt(rate) at a tenth of the base RTT.

python examples/controller.py    # prints utilisation, fairness and queueing delay of 16 flows
"""

from pathlib import Path

import numpy as np
from thalweg.sim import Batch, Scenario

SCENARIO = Path(__file__).parents[1] / "scenarios/sim/many-to-one-16.toml"
TARGET = 0.1


def main() -> None:
    scenario = Scenario.load(SCENARIO).replace(duration_s=0.04, warmup_s=0.02)
    batch = Batch(scenario, seeds=[1, 2, 3], initial=1 / 64)
    while (decisions := batch.advance()) is not None:
        queueing = decisions.rtt_s / decisions.base_rtt_s - 1
        # Slower flows tolerate a longer queue, so all rates meet.
        step = 0.1 * (TARGET - queueing * np.sqrt(decisions.rate))
        # A factor for each flow's rate.
        batch.decide(np.clip(1 + step, 0.5, 1.1))
    for env in range(batch.envs):
        outcome = batch.outcome(env)
        su, fr, ql_us = (outcome[name] for name in ("su", "fr", "ql_us"))
        print(f"seed {env + 1}: SU {su:.1f} %, FR {fr:.1f} %, QL {ql_us:.1f} us")


if __name__ == "__main__":
    main()
