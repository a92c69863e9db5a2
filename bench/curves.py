"""Curves as SVG, by nothing but text: a picture that a page can show and a diff can read.

    title, axes, series of points -> chart -> SVG

Numbers are rounded to a tenth of a pixel, so that the same points give the same file.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 400
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 44, 50
LEGEND_LINE = 18
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
"""Okabe and Ito's: told apart by colour-blind readers, too."""
INK, FAINT, PAPER = "#222222", "#dddddd", "#ffffff"
TICKS = 6
SUFFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Series:
    """Points (x, y), by x."""

    name: str
    points: Sequence[tuple[float, float]]


def nice_ticks(high: float) -> list[float]:
    """Round numbers from 0 to at least `high`, at most `TICKS` steps."""
    if high <= 0:
        return [0.0, 1.0]
    rough = high / TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(n * unit for n in (1, 2, 5, 10) if n * unit >= rough * (1 - 1e-9))
    return [i * step for i in range(math.ceil(high / step - 1e-9) + 1)]


def label(value: float) -> str:
    """A number at an axis."""
    for size, suffix in SUFFIXES:
        if abs(value) >= size:
            return f"{value / size:g}{suffix}"
    return f"{value:g}"


def chart(title: str, x_name: str, y_name: str, series: Sequence[Series]) -> str:
    """A line chart whose axes begin at 0; each x of a series gets a tick."""
    points = [point for one in series for point in one.points]
    if not points:
        raise ValueError("a chart without points")
    x_ticks = sorted({x for x, _ in points})
    y_ticks = nice_ticks(max(y for _, y in points))
    height = HEIGHT + LEGEND_LINE * len(series)
    bottom = HEIGHT - BOTTOM

    def at(x: float, y: float) -> tuple[str, str]:
        # A run of number 0 alone: its point stands in the middle.
        across = LEFT + (x / x_ticks[-1] if x_ticks[-1] else 0.5) * (WIDTH - LEFT - RIGHT)
        up = bottom - y / y_ticks[-1] * (bottom - TOP)
        return f"{across:.1f}", f"{up:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="13" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        f'<text x="{LEFT}" y="24" font-size="16">{escape(title)}</text>',
    ]
    for tick in y_ticks:
        _, y = at(0, tick)
        parts += [
            f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="{FAINT}"/>',
            f'<text x="{LEFT - 8}" y="{float(y) + 4:.1f}" text-anchor="end">{label(tick)}</text>',
        ]
    for tick in x_ticks:
        x, _ = at(tick, 0)
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{label(tick)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts += [
        f'<line x1="{LEFT}" y1="{bottom}" x2="{WIDTH - RIGHT}" y2="{bottom}" stroke="{INK}"/>',
        f'<text x="{middle:.0f}" y="{bottom + 38}" text-anchor="middle">{escape(x_name)}</text>',
        f'<text x="16" y="{(TOP + bottom) / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 16 {(TOP + bottom) / 2:.0f})">{escape(y_name)}</text>',
    ]
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        stroke = f'stroke="{colour}" stroke-width="2"'
        path = " ".join(",".join(at(x, y)) for x, y in one.points)
        parts.append(f'<polyline points="{path}" fill="none" {stroke}/>')
        for x, y in one.points:
            across, up = at(x, y)
            parts.append(f'<circle cx="{across}" cy="{up}" r="4" fill="{colour}"/>')
        y = HEIGHT + LEGEND_LINE * number
        parts += [
            f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + 28}" y2="{y}" {stroke}/>',
            f'<text x="{LEFT + 36}" y="{y + 4}">{escape(one.name)}</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])
