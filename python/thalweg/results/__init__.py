# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Published results beside ours: the pages of ``docs/measurements`` and their pictures.

``python -m thalweg.results`` makes a page of a list of tables, from runs of ``thalweg-lab run`` and
``thalweg-lab sim run`` and from simulations in Python; ``docs/reference/results.md`` describes lists
and results.
"""
