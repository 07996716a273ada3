"""One trained model's row of the table, measured on held-out images, and the figure of all rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from robustzoo.data import load_dataset
from robustzoo.diagnostics.hessian import LossHessian
from robustzoo.diagnostics.model_loss import adversarial_points, loss_function, top_layer_trace
from robustzoo.diagnostics.results import write_figure
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.models import read_folder

# Column prefix -> protocol. Both are upper bounds on what aa-standard would find.
PROTOCOLS = {"pgd20": "pgd-20", "apgd_ce": "apgd-ce"}
PROBES = 16
COLUMNS = (
    "loss",
    "lambda",
    "images",
    "clean_percent",
    *(f"{prefix}_{what}" for prefix in PROTOCOLS for what in ("percent", "low", "high")),
    "robust_loss",
    "trace_top",
    "trace_all",
    "trace_all_standard_error",
    "model",
)


def measure(folder: Path, *, seed: int = 0) -> dict[str, Any]:
    """One row of the table, without loss and lambda.

    Percentages are of the held-out images of the model's data set, with exact 95 % intervals (low, high). The
    traces are of the recipe's robust loss at its own training attack on the same images: the top layer's in
    closed form (as the recipe regularises it), and of all parameters from Hutchinson probes.
    """
    model = read_folder(folder)
    images = load_dataset(model.recipe.dataset, split="holdout")
    row: dict[str, Any] = {"images": len(images)}
    for prefix, protocol in PROTOCOLS.items():
        evidence = evaluate(model, images, protocol=protocol, seed=seed, progress=False)
        clean, robust = evidence.clean_accuracy, evidence.robust_accuracy
        row["clean_percent"] = 100.0 * clean.value
        row[f"{prefix}_percent"] = 100.0 * robust.value
        row[f"{prefix}_low"], row[f"{prefix}_high"] = 100.0 * robust.low, 100.0 * robust.high
    points = adversarial_points(model, images, seed=seed)
    constant = model.recipe.trh_stop_gradient
    hessian = LossHessian(*loss_function(model, points, stop_gradient=constant))
    _, whole, _ = hessian.probe(PROBES, seed)
    return row | {
        "robust_loss": hessian.loss.item(),
        "trace_top": top_layer_trace(model, points, stop_gradient=constant),
        "trace_all": whole.value,
        "trace_all_standard_error": whole.standard_error,
        "model": model.name,
    }


def draw(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Draw robust accuracy against lambda, as the paper's sensitivity figure, and beside it the trace.

    The robust accuracy is APGD-CE's, with 95 % intervals; the clean one is dashed.
    """
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
