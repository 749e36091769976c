# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Many simulations: scenarios x controllers x seeds, on this machine or on many.

``python -m thalweg.sweep SWEEP.toml --out DIR``; ``docs/guide/python.md`` describes the file.
"""

from thalweg.sweep.plan import Cell, Plan, SweepError
from thalweg.sweep.store import Store

__all__ = ["Cell", "Plan", "Store", "SweepError"]
