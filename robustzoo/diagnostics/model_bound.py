"""The bound for a trained model: measured terms, and what of it can be known, as a record and in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from robustzoo import keyed_noise
from robustzoo.diagnostics.bound import LINEAR_UP_TO, Bound, Guarantee, Prior
from robustzoo.diagnostics.hessian import LossHessian
from robustzoo.diagnostics.model_loss import Points, loss_function, square_norm, top_layer_trace
from robustzoo.models.pixel_model import PixelModel

EXACT_UP_TO = 1000  # weights of a top layer whose second derivatives are all computed


@dataclass(frozen=True)
class Draws:
    """How much is estimated at random, and with which seed.

    Attributes:
        probes: of Hutchinson's estimate of the trace of all parameters, at least 2.
        weights: how many second derivatives case II looks at, at random places, at least 2; all where there
            are no more, and in a top layer of at most `EXACT_UP_TO`.
        seed: of probes and places.
    """

    probes: int = 32
    weights: int = 128
    seed: int = 0


def model_bound(
    model: PixelModel,
    points: Points,
    prior: Prior,
    guarantee: Guarantee,
    draws: Draws = Draws(),
    stop_gradient: bool = True,
) -> dict[str, Any]:
    """Every term of the bound, with the top layer's trace (as trained) and with that of all parameters.

    Args:
        model: in eval mode, with a recipe.
        points: images at which loss and trace are measured: a part of the training set estimates both.
        stop_gradient: see `model_loss.loss_function`.

    Returns:
        JSON-able, with None where the paper and the options leave a number unknown.
    """
    loss, parameters = loss_function(model, points, stop_gradient=stop_gradient)
    hessian = LossHessian(loss, parameters)
    (head,) = (name for name, p in model.named_parameters() if p is model.head.weight)
    top_hessian = LossHessian(loss, parameters, [head])
    trace_top = top_layer_trace(model, points, stop_gradient=stop_gradient)
    common = (prior, guarantee, hessian.loss.item(), square_norm(model))
    top = Bound(*common, trace_top)
    _, whole, _ = hessian.probe(draws.probes, draws.seed)
    full = Bound(*common, whole.value)
    return {
        "model": model.name,
        "loss": model.recipe.loss,
        "images": len(points.y),
        "training_samples_m": guarantee.samples,
        "sigma0_squared": prior.sigma0_squared,
        "beta": prior.beta,
        "lambda": prior.trh_lambda,
        "gamma": prior.trh_gamma,
        "tau": guarantee.tau,
        "sub_gaussian": guarantee.sub_gaussian,
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
        **_exact_forms("top", top, top_hessian, max(draws.weights, EXACT_UP_TO), draws),
        **_exact_forms("all", full, hessian, draws.weights, draws),
        "confidence_term": top.confidence_term,
        "moment_term": top.moment_term,
        "total_top": top.total,
        "total_all": full.total,
    }


def _exact_forms(
    of: str, bound: Bound, hessian: LossHessian, exact_up_to: int, draws: Draws
) -> dict[str, Any]:
    """Both exact forms of the trace's term, their arguments x, and whether the linear form holds."""
    size, places = hessian.size, None
    if size > exact_up_to:
        ids = torch.arange(draws.weights)
        places = keyed_noise.integers(draws.seed, ids, f"bound-weights/{of}", size, ()).flatten()
    curvatures = hessian.diagonal(places).tolist()
    mean = bound.prior.argument(bound.trace / size)
    case_1 = bound.prior.spherical_term(bound.trace, size)
    case_2 = bound.prior.diagonal_term(curvatures, size)
    record = {
        "weights": size,
        "weights_looked_at": len(curvatures),
        "x_mean": mean,
        "x_min": case_2.smallest,
        "x_max": case_2.largest,
        "case_1": case_1,
        "value_case_1": None if case_1 is None else bound.robust_loss + bound.norm_term + case_1,
        "case_2": case_2.minimum,
        "case_2_capped": case_2.capped,
        "case_2_standard_error": case_2.standard_error,
        "share_without_minimum": case_2.without_minimum,
        "linear_form_holds": max(abs(mean), -case_2.smallest, case_2.largest) <= LINEAR_UP_TO,
    }
    return {f"{key}_{of}": value for key, value in record.items()}


def report(record: Mapping[str, Any]) -> str:
    """A record of `model_bound` in words, with what is not known named as such."""
    r = record
    prior = f"sigma0^2 {r['sigma0_squared']:.4g}, beta {r['beta']:.4g}"
    weights = f"lambda {r['lambda']:.4g} = sigma0^2 / 2, gamma {r['gamma']:.4g} = 1 / (2 beta sigma0^2)"
    error = f"{r['trace_all']:.6g} +- {r['trace_all_standard_error']:.2g}"
    of = {"top": "the top layer", "all": "all parameters"}
    lines = [
        ("prior", prior, weights),
        ("L", r["robust_loss"], f"mean {r['loss'].upper()} loss at the recipe's training attack"),
        ("norm", r["norm_term"], f"gamma |theta|^2, |theta|^2 = {r['square_norm']:.6g}"),
        ("trace", r["trace_term_top"], f"lambda Tr of the top layer, Tr = {r['trace_top']:.6g}, closed form"),
        ("", r["trace_term_all"], f"lambda Tr of all parameters, Tr = {error} (Hutchinson, standard error)"),
        ("x", r["x_mean_top"], f"sigma0^2 beta Tr / N of the top layer; {_range(r, 'top')}"),
        ("", r["x_mean_all"], f"sigma0^2 beta Tr / N of all parameters; {_range(r, 'all')}"),
        *((("", "case I")[key == "top"], *_case_1(r, key, name)) for key, name in of.items()),
        *((("", "case II")[key == "top"], *_case_2(r, key, name)) for key, name in of.items()),
        ("value", r["value_top"], "L + norm + trace of the top layer, which training minimises"),
        ("", r["value_all"], "L + norm + trace of all parameters"),
        ("", _number(r["value_case_1_top"]), "L + norm + case I of the top layer"),
        ("", _number(r["value_case_1_all"]), "L + norm + case I of all parameters"),
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
            *(f"{name:<7} {v:<{width}}  {text}" for name, v, text in table),
            "",
            f"The linear term holds (within 5 %) where every |x| is at most {LINEAR_UP_TO:g}: "
            + "; ".join(f"{name}, {_linear(r, key)}" for key, name in of.items())
            + ".",
            "The paper states neither tau, nor C, nor the constant of O(sigma0^4), which is left out above.",
        ]
    )


def _number(value: float | None) -> str | float:
    return "none" if value is None else value


def _range(r: Mapping[str, Any], of: str) -> str:
    size, looked_at = r[f"weights_{of}"], r[f"weights_looked_at_{of}"]
    which = (
        f"its N = {size:,} weights" if size == looked_at else f"{looked_at:,} weights drawn of N = {size:,}"
    )
    return f"over {which} from {r[f'x_min_{of}']:.4g} to {r[f'x_max_{of}']:.4g}"


def _case_1(r: Mapping[str, Any], of: str, name: str) -> tuple[str | float, str]:
    value = r[f"case_1_{of}"]
    if value is None:
        return "none", f"over {name}: x <= -1, so no variance is best"
    return value, f"N / (2 beta) log(1 + x) of {name}: one variance for all weights"


def _case_2(r: Mapping[str, Any], of: str, name: str) -> tuple[str | float, str]:
    drawn = r[f"weights_looked_at_{of}"] < r[f"weights_{of}"]
    error = f" +- {r[f'case_2_standard_error_{of}']:.2g}" if drawn else ""
    if r[f"case_2_{of}"] is not None:
        return r[
            f"case_2_{of}"
        ], f"sum of log(1 + x) / (2 beta) over {name}: a variance for each weight{error}"
    share = f"{100 * r[f'share_without_minimum_{of}']:.3g} %"
    capped = f"{r[f'case_2_capped_{of}']:.3g}{error}"
    return (
        "none",
        f"over {name}: x <= -1 at {share} of those looked at; {capped} with no variance above sigma0^2",
    )


def _linear(r: Mapping[str, Any], of: str) -> str:
    if r[f"linear_form_holds_{of}"]:
        return "it does"
    if not r[f"case_1_{of}"]:
        return "it does not"
    return f"it does not and is {r[f'trace_term_{of}'] / r[f'case_1_{of}']:.3g} times case I"
