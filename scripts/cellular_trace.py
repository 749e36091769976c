#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Write a trace of a cellular link in the format of Mahimahi to standard output.

The model is that of Sprout (Winstein, Sivaraman and Balakrishnan, NSDI 2013, section 3.1): packets
are a Poisson process whose rate is a Brownian motion of 200 packets/s per root of a second,
between 0 and 1000 packets of 1500 bytes a second (12 Mbit/s, the median of LTE downlinks by Huang
et al., MobiSys 2012). At 0 the link is out, and comes back at a rate of 1 a second.

    scripts/cellular_trace.py > scenarios/traces/cellular.trace
"""

import math
import random

SEED = 1
LENGTH_MS = 30_000
# Packets a second.
SIGMA = 200.0
MOST = 1000.0
# Of an outage, a second.
ESCAPE = 1.0


def normal(draw: random.Random) -> float:
    """Draw a standard normal number (Box and Muller 1958): `gauss` may change between versions."""
    radius = math.sqrt(-2.0 * math.log(1.0 - draw.random()))
    return radius * math.cos(2.0 * math.pi * draw.random())


def main() -> None:
    """Write the trace."""
    draw = random.Random(SEED)
    rate, due, gap = MOST / 2, 0.0, -math.log(1.0 - draw.random())
    for ms in range(1, LENGTH_MS + 1):
        if rate > 0.0 or draw.random() < ESCAPE / 1000:
            rate = rate + SIGMA * math.sqrt(0.001) * normal(draw)
            rate = min(max(rate, 0.0), 2 * MOST - rate)
        # Of a Poisson process of rate 1 whose time runs as fast as the link.
        due += rate / 1000
        while due >= gap:
            print(ms)
            gap += -math.log(1.0 - draw.random())


if __name__ == "__main__":
    main()
