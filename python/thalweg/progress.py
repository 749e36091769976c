# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Progress of long work, in words."""

from __future__ import annotations


def words(seconds: float) -> str:
    """A time as people say it.

    >>> words(7.6), words(100), words(5400)
    ('8 s', '2 min', '1 h 30 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
