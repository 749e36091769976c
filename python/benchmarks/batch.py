# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Cost of a decision in Python: the decision rate of ``thalweg.sim.Batch`` with a policy that
keeps every rate, over that of the same simulations with the same policy within the simulator.

``python python/benchmarks/batch.py [--rounds N]`` from the repository's root. Both take turns on
one thread each; processor time is measured, medians are shown. Exits with 1 where a row
misses 60 %.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from thalweg.sim import Batch, Scenario

#: Flows, simulations side by side, simulated microseconds.
ROWS = [
    (2, 1, 1_000_000),
    (2, 64, 20_000),
    (16, 1, 1_000_000),
    (16, 16, 60_000),
    (64, 1, 1_000_000),
    (64, 16, 60_000),
    (1024, 1, 500_000),
    (1024, 8, 60_000),
    (8192, 1, 500_000),
]
TARGET = 0.6


def file_of(flows: int) -> str:
    return str(Path(f"scenarios/sim/many-to-one-{flows}.toml").resolve())


def rust(flows: int, envs: int, duration_us: int) -> float:
    """Decisions per second of processor time."""
    command = ["cargo", "bench", "--quiet", "--locked", "-p", "thalweg-sim", "--bench", "decisions"]
    arguments = [file_of(flows), str(1 / flows), str(envs), str(duration_us)]
    result = subprocess.run(
        [*command, "--", *arguments], check=True, capture_output=True, text=True
    )
    decisions, seconds = result.stdout.split()
    return int(decisions) / float(seconds)


def python(flows: int, envs: int, duration_us: int) -> tuple[float, float]:
    """Decisions per second of processor time, and per call."""
    scenario = Scenario.load(file_of(flows)).replace(duration_s=duration_us * 1e-6, warmup_s=0)
    ones = np.ones(flows * envs, np.float32)
    calls = 0
    begin = time.process_time()
    batch = Batch(scenario, range(envs), initial=1 / flows, jobs=1)
    while (decisions := batch.advance()) is not None:
        batch.decide(ones[: len(decisions)])
        calls += 1
    return batch.decisions / (time.process_time() - begin), batch.decisions / calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    print(" flows  envs  decisions/call  Rust M/s  Python M/s  ratio (least to greatest)")
    missed = False
    for flows, envs, duration_us in ROWS:
        inside, outside, ratios, size = [], [], [], 0.0
        for _ in range(rounds):
            inside.append(rust(flows, envs, duration_us))
            rate, size = python(flows, envs, duration_us)
            outside.append(rate)
            ratios.append(rate / inside[-1])
        ratio = statistics.median(ratios)
        missed |= ratio < TARGET
        verdict = "reached" if ratio >= TARGET else "MISSED"
        print(
            f"{flows:6} {envs:5} {size:15.1f} {statistics.median(inside) * 1e-6:9.2f}"
            f" {statistics.median(outside) * 1e-6:11.2f}  {ratio:.0%}"
            f" ({min(ratios):.0%} to {max(ratios):.0%}), {verdict}",
            flush=True,
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
