"""The paper's two figures of the study: the trace over epochs, and trace and eigenvalue spread per layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robustzoo.diagnostics.results import write_figure
from robustzoo.studies.two_moons.moons import SETTINGS
from robustzoo.studies.two_moons.traces import ALL, Row

TRACE, SPECTRUM = "two_moons_trace.png", "two_moons_spectrum.png"
_COLOURS = {"Standard": "tab:blue", "Top": "tab:orange", "Full": "tab:green"}  # as in the paper
_LABELS = {"trace": "trace of the Hessian", "eigenvalue_std": "std of its eigenvalues"}


def draw(out: Path, rows: Sequence[Row]) -> tuple[Path, Path]:
    """Draw both figures from the rows of all seeds: lines are medians, bands go from minimum to maximum."""
    seeds = len({row.seed for row in rows})
    note = f"median of {seeds} seeds, band: minimum to maximum" if seeds > 1 else "one seed"
    trace = Figure(figsize=(5, 3.6), layout="constrained")
    axes = trace.subplots()
    _curves(axes, rows, ALL, "trace")
    axes.set_title(f"Two moons, whole network\n({note})", fontsize=9)
    axes.set_ylabel(_LABELS["trace"])
    axes.set_xlabel("epoch")
    axes.legend()

    layers = list(dict.fromkeys(row.layer for row in rows))
    order = [ALL, *(layer for layer in layers if layer != ALL)]
    spectrum = Figure(figsize=(13, 6), layout="constrained")
    grid = spectrum.subplots(2, len(order), sharex=True)
    for column, layer in enumerate(order):
        for line, quantity in enumerate(_LABELS):
            axes = grid[line, column]
            _curves(axes, rows, layer, quantity)
            if line == 0:
                axes.set_title("all layers" if layer == ALL else _title(layer, layers))
            else:
                axes.set_xlabel("epoch")
            if column == 0:
                axes.set_ylabel(_LABELS[quantity])
    grid[0, 0].legend()
    spectrum.suptitle(f"Two moons ({note})", fontsize=10)
    return write_figure(out / TRACE, trace), write_figure(out / SPECTRUM, spectrum)


def _title(layer: str, layers: Sequence[str]) -> str:
    top = max(int(name) for name in layers if name != ALL)
    return f"layer {layer} (top)" if int(layer) == top else f"layer {layer}"


def _curves(axes: Axes, rows: Sequence[Row], layer: str, quantity: str) -> None:
    for setting in SETTINGS:
        values: dict[int, list[float]] = {}
        for row in rows:
            if (row.setting, row.layer) == (setting, layer):
                values.setdefault(row.epoch, []).append(getattr(row, quantity))
        epochs = list(values)
        axes.plot(
            epochs, [median(v) for v in values.values()], color=_COLOURS[setting], label=setting, lw=1.3
        )
        low, high = [min(v) for v in values.values()], [max(v) for v in values.values()]
        axes.fill_between(epochs, low, high, color=_COLOURS[setting], alpha=0.15, lw=0)
    axes.set_yscale("log")
    axes.grid(alpha=0.3)
