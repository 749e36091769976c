#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""A line for each results.json of `thalweg lab run`: the learner, the default, the best fixed arm."""

import json
import sys


def rate(bits: float) -> str:
    """A rate in bit/s with a unit, three figures."""
    for factor, unit in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= factor:
            return f"{bits / factor:.3g} {unit}"
    return f"{bits / 1e3:.3g} kbit/s"


for file in sys.argv[1:]:
    with open(file, encoding="utf-8") as results:
        (scenario,) = json.load(results)["scenarios"]
    modes = {mode["mode"]: mode["summary"] for mode in scenario["modes"]}
    learned = modes["thalweg"]["median_last_half_bps"]
    default = modes["baseline"]["median_bps"]
    best = scenario["best_fixed"]
    fixed = modes[best]["median_bps"]
    print(
        f"{scenario['scenario']['name'] + ':':9}Thalweg {rate(learned)}, "
        f"{learned / default:.2f} × the default ({scenario['scenario']['system']['default_cc']}, "
        f"{rate(default)}), {learned / fixed:.2f} × the best fixed arm ({best.removeprefix('fixed:')}, "
        f"{rate(fixed)})"
    )
