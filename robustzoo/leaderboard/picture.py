"""Clean against robust accuracy as SVG: for each row a point with its intervals, which is a link."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor

from robustzoo.streams import one_line

_WIDTH, _HEIGHT = 720, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 24, 14, 54
_LABELLED = 40  # points beyond which their numbers would hide each other


@dataclass(frozen=True)
class Point:
    """One row. All accuracies in percent; an interval is None where none is known.

    Attributes:
        row: id of the table's row.
        rank: the number of that row.
    """

    row: str
    rank: int
    name: str
    href: str
    clean: float
    robust: float
    clean_interval: tuple[float, float] | None = None
    robust_interval: tuple[float, float] | None = None


def scatter(points: Sequence[Point], *, title: str) -> str:
    """The picture; empty text for no points."""
    if not points:
        return ""
    x_low, x_high, x_step = _range([v for p in points for v in (p.clean, *(p.clean_interval or ()))])
    y_low, y_high, y_step = _range([v for p in points for v in (p.robust, *(p.robust_interval or ()))])

    def x(value: float) -> float:
        return _LEFT + (value - x_low) / (x_high - x_low) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - (value - y_low) / (y_high - y_low) * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="group" aria-label="{escape(title)}" '
        'xmlns="http://www.w3.org/2000/svg">'
    ]
    for value in _ticks(x_low, x_high, x_step):
        at = f"{x(value):.1f}"
        parts.append(f'<line x1="{at}" x2="{at}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" stroke="#e3e7ec"/>')
        parts.append(f'<text x="{at}" y="{_HEIGHT - _BOTTOM + 21}" text-anchor="middle">{value:g}</text>')
    for value in _ticks(y_low, y_high, y_step):
        at = y(value)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e3e7ec"/>'
        )
        base = at if value == y_low else at + 4  # the lowest stands clear of the first below it, on a phone
        parts.append(f'<text x="{_LEFT - 8}" y="{base:.1f}" text-anchor="end">{value:g}</text>')
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">'
        "clean accuracy (%)</text>"
        f'<text transform="translate(16 {(_TOP + _HEIGHT - _BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        "robust accuracy (%)</text>"
    )
    parts += [_bars(point, x, y) for point in points]
    parts += [_drawn(point, x, y, labelled=len(points) <= _LABELLED) for point in points]
    return "\n".join([*parts, "</svg>"])


def _bars(point: Point, x: Callable[[float], float], y: Callable[[float], float]) -> str:
    if point.clean_interval is None or point.robust_interval is None:
        return ""
    (left, right), (low, high) = point.clean_interval, point.robust_interval
    at, up = x(point.clean), y(point.robust)
    return (
        f'<path data-point="{escape(point.row)}" stroke="#7f8b9b" stroke-width="1.5" fill="none" '
        f'd="M{x(left):.1f} {up:.1f}H{x(right):.1f}M{at:.1f} {y(low):.1f}V{y(high):.1f}"/>'
    )


def _drawn(point: Point, x: Callable[[float], float], y: Callable[[float], float], *, labelled: bool) -> str:
    at, up = x(point.clean), y(point.robust)
    said = f"{point.rank}. {one_line(point.name)}: clean {point.clean:.2f} %, robust {point.robust:.2f} %"
    number, kind = "", ' class="small"'
    if labelled:
        number, kind = (
            f'<text x="{at:.1f}" y="{up:.1f}" dy="0.35em" text-anchor="middle">{point.rank}</text>',
            "",
        )
    return (
        f'<a href="{escape(point.href)}" data-point="{escape(point.row)}" aria-label="{escape(said)}">'
        f"<title>{escape(said)}</title>"
        f'<circle{kind} cx="{at:.1f}" cy="{up:.1f}" r="{9 if labelled else 5}"/>{number}</a>'
    )


def _range(values: Sequence[float]) -> tuple[float, float, float]:
    """Limits in [0, 100] around all values, and the step of the ticks, which both are multiples of."""
    low, high = min(values), max(values)
    step = next(s for s in (1, 2, 5, 10, 20) if (high - low) / s <= 7 or s == 20)
    low, high = max(0, floor((low - step / 4) / step) * step), min(100, ceil((high + step / 4) / step) * step)
    return (low, high, step) if high > low else (max(0, low - step), min(100, high + step), step)


def _ticks(low: float, high: float, step: float) -> list[float]:
    return [low + step * i for i in range(int((high - low) / step) + 1)]
