"""The bound for a trained model: measured terms, and what of it can be known, as a record and in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robustzoo.diagnostics.bound import Bound, Prior
from robustzoo.diagnostics.hessian import LossHessian
from robustzoo.diagnostics.model_loss import Points, loss_function, square_norm, top_layer_trace
from robustzoo.models.pixel_model import PixelModel


def model_bound(
    model: PixelModel,
    points: Points,
    prior: Prior,
    *,
    samples: int,
    probes: int = 32,
    seed: int = 0,
    stop_gradient: bool = True,
    tau: float = 0.05,
    sub_gaussian: float | None = None,
) -> dict[str, Any]:
    """Every term of the bound, with the top layer's trace (as trained) and with that of all parameters.

    Args:
        model: in eval mode, with a recipe.
        points: images at which loss and trace are measured: a part of the training set estimates both.
        samples: m, the size of the training set.
        probes, seed: of Hutchinson's estimate of the trace of all parameters.
        stop_gradient: see `model_loss.loss_function`.
        tau, sub_gaussian: see `Bound`.

    Returns:
        JSON-able, with None where the paper and the options leave a number unknown.

    Raises:
        BoundError: tau, sub_gaussian or samples out of range.
    """
    hessian = LossHessian(*loss_function(model, points, stop_gradient=stop_gradient))
    trace_top = top_layer_trace(model, points, stop_gradient=stop_gradient)
    common = (prior, hessian.loss.item(), square_norm(model))
    top = Bound(*common, trace_top, samples, tau, sub_gaussian)
    _, whole, _ = hessian.probe(probes, seed)
    full = Bound(*common, whole.value, samples, tau, sub_gaussian)
    return {
        "model": model.name,
        "loss": model.recipe.loss,
        "images": len(points.y),
        "training_samples_m": samples,
        "sigma0_squared": prior.sigma0_squared,
        "beta": prior.beta,
        "lambda": prior.trh_lambda,
        "gamma": prior.trh_gamma,
        "tau": tau,
        "sub_gaussian": sub_gaussian,
        "robust_loss": top.robust_loss,
        "square_norm": top.square_norm,
        "norm_term": top.norm_term,
        "trace_top": trace_top,
        "trace_all": whole.value,
        "trace_all_standard_error": whole.standard_error,
        "trace_term_top": top.trace_term,
        "trace_term_all": full.trace_term,
        "value_top": top.value,
        "value_all": full.value,
        "confidence_term": top.confidence_term,
        "moment_term": top.moment_term,
        "total_top": top.total,
        "total_all": full.total,
    }


def report(record: Mapping[str, Any]) -> str:
    """A record of `model_bound` in words, with what is not known named as such."""
    r = record
    prior = f"sigma0^2 {r['sigma0_squared']:.4g}, beta {r['beta']:.4g}"
    weights = f"lambda {r['lambda']:.4g} = sigma0^2 / 2, gamma {r['gamma']:.4g} = 1 / (2 beta sigma0^2)"
    error = f"{r['trace_all']:.6g} +- {r['trace_all_standard_error']:.2g}"
    lines = [
        ("prior", prior, weights),
        ("L", r["robust_loss"], f"mean {r['loss'].upper()} loss at the recipe's training attack"),
        ("norm", r["norm_term"], f"gamma |theta|^2, |theta|^2 = {r['square_norm']:.6g}"),
        ("trace", r["trace_term_top"], f"lambda Tr of the top layer, Tr = {r['trace_top']:.6g}, closed form"),
        ("", r["trace_term_all"], f"lambda Tr of all parameters, Tr = {error} (Hutchinson, standard error)"),
        ("value", r["value_top"], "their sum with the top layer's trace, which training minimises"),
        ("", r["value_all"], "their sum with the trace of all parameters"),
        ("in C", r["confidence_term"], f"log(1 / tau) / beta with tau = {r['tau']:g}"),
    ]
    if r["moment_term"] is None:
        lines.append(("", "unknown", "Psi / beta, decided by the data's distribution (--sub-gaussian S2)"))
    else:
        lines += [
            ("", r["moment_term"], f"beta s^2 / (2 m), assuming s^2 = {r['sub_gaussian']:g}"),
            ("total", r["total_top"], "with the top layer's trace and C"),
            ("", r["total_all"], "with the trace of all parameters and C"),
        ]
    table = [(name, v if isinstance(v, str) else f"{v:.6g}", text) for name, v, text in lines]
    width = max(len(v) for name, v, _ in table if name != "prior")
    return "\n".join(
        [
            f"{r['model']}: {r['images']} of m = {r['training_samples_m']:,} images",
            "",
            *(f"{name:<6} {v:<{width}}  {text}" for name, v, text in table),
            "",
            "The paper states neither tau, nor C, nor the constant of O(sigma0^4), which is left out above.",
        ]
    )
