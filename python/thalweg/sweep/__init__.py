# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Many simulations: scenarios x controllers x seeds, on this machine or on many.

``python -m thalweg.sweep SWEEP.toml --out DIR``; ``docs/guide/python.md`` describes the file.
"""

from thalweg.sweep.cells import Cell, Contender, Store
from thalweg.sweep.plan import Plan, SweepError

__all__ = ["Cell", "Contender", "Plan", "Store", "SweepError"]
