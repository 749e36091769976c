# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Pictures as SVG: panels of lines over the same few values, with the spread of each point."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Line:
    """Places along the axis, with the least value, the median and the greatest at each."""

    name: str
    points: Sequence[tuple[int, tuple[float, float, float]]]


@dataclass(frozen=True)
class Panel:
    """Lines with one scale."""

    title: str
    lines: Sequence[Line]


WIDTH, HEIGHT, LEGEND = 430, 230, 34
LEFT, RIGHT, TOP, BOTTOM = 58, 14, 34, 44
STYLE = (
    "text{font:13px sans-serif;fill:#222}.end{text-anchor:end}"
    ".middle{text-anchor:middle}.title{font-weight:bold}.grid{stroke:#ccc;stroke-width:1}"
    ".line{fill:none;stroke-width:2}.bar{stroke-width:1.5}"
    ".c0{stroke:#b3420b;fill:#b3420b}.c1{stroke:#0b5cad;fill:#0b5cad}.c2{stroke:#2a7a2a;fill:#2a7a2a}"
    ".c3{stroke:#8a3c8a;fill:#8a3c8a}.c4{stroke:#7a6300;fill:#7a6300}.c5{stroke:#555;fill:#555}"
    ".c1.line{stroke-dasharray:7 3}.c2.line{stroke-dasharray:2 3}.c3.line{stroke-dasharray:9 3 2 3}"
    ".c4.line{stroke-dasharray:4 2}.c5.line{stroke-dasharray:1 2}.page{fill:#fff}"
)


def panels(title: str, across: str, values: Sequence[str], shown: Sequence[Panel]) -> str:
    """Panels, two in a row, in one file. Lines differ by colour, dashes and marks."""
    width, height = 2 * WIDTH, LEGEND + -(-len(shown) // 2) * HEIGHT
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img">\n<title>{_text(title)}</title>\n'
        f'<style>{STYLE}</style>\n<rect class="page" width="{width}" height="{height}"/>\n'
    ]
    left, middle = LEFT, LEGEND // 2
    for number, line in enumerate(shown[0].lines if shown else ()):
        svg.append(
            f'<line class="line c{number}" x1="{left}" x2="{left + 40}" y1="{middle}" y2="{middle}"/>'
            f'{_mark(number, left + 20, middle)}<text x="{left + 48}" y="{middle + 4}">'
            f"{_text(line.name)}</text>\n"
        )
        left += 90 + 8 * len(line.name)
    for number, panel in enumerate(shown):
        x, y = number % 2 * WIDTH, LEGEND + number // 2 * HEIGHT
        svg.append(f'<g transform="translate({x},{y})">\n{_panel(across, values, panel)}</g>\n')
    return "".join(svg) + "</svg>\n"


def _panel(across: str, values: Sequence[str], panel: Panel) -> str:
    drawn = [value for line in panel.lines for _, spread in line.points for value in spread]
    finite = [value for value in drawn if math.isfinite(value)]
    step = _step(max(finite, default=0.0))
    steps = max([1, *(math.ceil(value / step) for value in finite)])
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT

    def x(place: int) -> float:
        return LEFT + (right - LEFT) * (place + 0.5) / max(len(values), 1)

    def y(value: float) -> float:
        # A value that was not reached lies at the upper edge.
        return bottom - (bottom - TOP) * min(value / (steps * step), 1.0)

    svg = [f'<text class="title" x="{LEFT}" y="{TOP - 14}">{_text(panel.title)}</text>']
    digits = max(-math.floor(math.log10(step)), 0)
    for number in range(steps + 1):
        at = y(number * step)
        svg.append(
            f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="end" x="{LEFT - 6}" y="{at + 4:.1f}">{number * step:.{digits}f}</text>'
        )
    for place, value in enumerate(values):
        svg.append(
            f'<text class="middle" x="{x(place):.1f}" y="{bottom + 17}">{_text(value)}</text>'
        )
    centre = (LEFT + right) // 2
    svg.append(f'<text class="middle" x="{centre}" y="{bottom + 35}">{_text(across)}</text>')
    for number, line in enumerate(panel.lines):
        way = " ".join(f"{x(place):.1f},{y(middle):.1f}" for place, (_, middle, _) in line.points)
        svg.append(f'<polyline class="line c{number}" style="fill:none" points="{way}"/>')
        for place, (least, middle, greatest) in line.points:
            at = x(place)
            svg.append(
                f'<line class="bar c{number}" x1="{at:.1f}" x2="{at:.1f}" '
                f'y1="{y(least):.1f}" y2="{y(greatest):.1f}"/>{_mark(number, at, y(middle))}'
            )
    return "".join(svg)


def _text(words: str) -> str:
    return html.escape(words, quote=False)


def _mark(number: int, x: float, y: float) -> str:
    if number == 0:
        return f'<circle class="c0" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
    return f'<rect class="c{number}" x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8"/>'


def _step(greatest: float) -> float:
    """1, 2 or 5 times a power of ten that divides up to the greatest value into at most five."""
    if greatest <= 0:
        return 1.0
    rough = greatest / 5
    power = 10.0 ** math.floor(math.log10(rough))
    return next((one * power for one in (1, 2, 5) if one * power >= rough * (1 - 1e-9)), 10 * power)
