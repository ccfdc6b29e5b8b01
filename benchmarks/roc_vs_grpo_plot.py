"""Curves over training steps as an SVG file: thin lines are seeds, the thick one is their mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 330, 240, 48, 12, 34, 34
COLOURS = {"grpo_roc": "#0072b2", "grpo": "#d55e00"}
NAMES = {"grpo_roc": "GRPO-RoC", "grpo": "GRPO"}
SMOOTHED = 3
"""Steps that a point is the mean of (it and those before it)."""


class Curve(NamedTuple):
    """One arm's figure."""

    arm: str
    values: np.ndarray
    """`[seeds, steps]`."""


class Panel(NamedTuple):
    """One figure, of all arms."""

    title: str
    curves: Sequence[Curve]
    as_share: bool


def draw(path: Path, panels: Sequence[Panel]) -> None:
    """Write the panels side by side."""
    body = "".join(
        f'<g transform="translate({index * WIDTH},0)">{_panel(panel)}</g>' for index, panel in enumerate(panels)
    )
    width = WIDTH * len(panels)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" width="{width}" height="{HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="11" fill="#1d2733">'
        f'<rect width="{width}" height="{HEIGHT}" fill="#fff"/>{body}</svg>\n'
    )


def _smooth(values: np.ndarray) -> np.ndarray:
    """`[seeds, steps]` -> the same."""
    return np.stack([values[:, max(0, at + 1 - SMOOTHED) : at + 1].mean(1) for at in range(values.shape[1])], axis=1)


def _panel(panel: Panel) -> str:
    smoothed = [(curve.arm, _smooth(curve.values)) for curve in panel.curves]
    top = 1.05 * max(float(values.max()) for _, values in smoothed) or 1.0
    steps = max(values.shape[1] for _, values in smoothed)

    def at(step: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * step / max(1, steps - 1)
        return x, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / top

    def line(values: np.ndarray, style: str) -> str:
        points = " ".join("{:.1f},{:.1f}".format(*at(step, float(value))) for step, value in enumerate(values))
        return f'<polyline points="{points}" fill="none" {style}/>'

    parts = [f'<text x="{LEFT}" y="16" font-weight="600">{panel.title}</text>']
    for share in np.linspace(0, 1, 5):
        x, y = at(0, share * top)
        label = f"{share * top:.0%}" if panel.as_share else f"{share * top:.0f}"
        parts.append(f'<path d="M{x},{y:.1f}H{WIDTH - RIGHT}" stroke="#e6e9ed"/>')
        parts.append(f'<text x="{x - 5}" y="{y + 4:.1f}" text-anchor="end" fill="#66707c">{label}</text>')
    for step in np.unique(np.linspace(0, steps - 1, 5).round()):
        x, y = at(step, 0)
        label = f"{step + 1:.0f}"
        parts.append(f'<text x="{x:.1f}" y="{y + 15:.1f}" text-anchor="middle" fill="#66707c">{label}</text>')
    for row, (arm, values) in enumerate(smoothed):
        colour = COLOURS[arm]
        parts += [line(seed, f'stroke="{colour}" stroke-opacity="0.3"') for seed in values]
        parts.append(line(values.mean(0), f'stroke="{colour}" stroke-width="2.5"'))
        x, y = WIDTH - RIGHT - 90, TOP + 10 + 14 * row
        parts.append(f'<path d="M{x},{y - 4}h16" stroke="{colour}" stroke-width="2.5"/>')
        parts.append(f'<text x="{x + 21}" y="{y}">{NAMES[arm]}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 5}" text-anchor="middle">step of training</text>'
    )
    return "".join(parts)
