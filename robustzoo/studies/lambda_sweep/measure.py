"""What is measured of one trained model: accuracies on held-out images and traces of the Hessian."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from robustzoo.data import load_dataset
from robustzoo.diagnostics.hessian import LossHessian
from robustzoo.diagnostics.model_loss import adversarial_points, loss_function, top_layer_trace
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
