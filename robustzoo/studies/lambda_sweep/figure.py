"""Robust accuracy against lambda, as the paper's sensitivity figure, and beside it the top layer's trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from robustzoo.diagnostics.results import write_figure


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Draw a sweep: APGD-CE accuracy with 95 % intervals, clean accuracy dashed, and the trace."""
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    accuracy, trace = figure.subplots(1, 2)
    for number, loss in enumerate(dict.fromkeys(row["loss"] for row in rows)):
        chosen = [row for row in rows if row["loss"] == loss]
        lambdas = [row["lambda"] for row in chosen]
        robust = [row["apgd_ce_percent"] for row in chosen]
        reach = [
            [value - row["apgd_ce_low"] for value, row in zip(robust, chosen, strict=True)],
            [row["apgd_ce_high"] - value for value, row in zip(robust, chosen, strict=True)],
        ]
        colour = f"C{number}"
        accuracy.errorbar(
            lambdas, robust, yerr=reach, color=colour, marker="o", capsize=3, label=f"{loss.upper()}, APGD-CE"
        )
        clean = [row["clean_percent"] for row in chosen]
        accuracy.plot(
            lambdas, clean, color=colour, marker=".", ls="--", alpha=0.6, label=f"{loss.upper()}, clean"
        )
        trace.plot(
            lambdas, [row["trace_top"] for row in chosen], color=colour, marker="o", label=loss.upper()
        )
    accuracy.set_ylabel(f"accuracy on {rows[0]['images']} held-out images (%)")
    trace.set_ylabel("top-layer trace of the Hessian")
    trace.set_yscale("log")
    for axes in (accuracy, trace):
        axes.set_xscale("log")
        axes.set_xlabel(r"$\lambda$ (weight of the trace)")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    return write_figure(path, figure)
