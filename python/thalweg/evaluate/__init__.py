# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Rate controllers judged in the simulator, beside the published tables.

``python -m thalweg.evaluate TABLE... --model FILE``; ``docs/guide/evaluation.md`` describes it, and
:mod:`thalweg.results.controllers` makes its pages.
"""
