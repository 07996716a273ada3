"""The robust loss of a recipe and its trace, from the outputs for a clean and an adversarial batch.

    AT      CE(x')
    ALP     CE(x') + weight |s - s'|^2                                          (Kannan et al. 2018)
    TRADES  CE(x)  + weight KL(s || s')                                         (Zhang et al. 2019)
    MART    CE(x') - log(1 - max_{k != y} s'_k) + weight (1 - s_y) KL(s || s')  (Wang et al. 2020)

With S2O the cross-entropy becomes (1 - alpha) CE + alpha S2O, alpha = `s2o_weight` (tables 5 and 6: AT 0.1,
TRADES 0.3). With `loss_stop_gradient` the clean softmax in the weighted term is a constant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from robustzoo.objectives import losses, trace_of_hessian
from robustzoo.objectives.second_order_statistics import second_order_loss

if TYPE_CHECKING:
    from robustzoo.registry import Recipe

LOSSES = ("at", "trades", "alp", "mart")
_PAIRED = {"trades": "kl", "alp": "pairing", "mart": "weighted_kl"}  # loss -> name of its weighted term


class Outputs(NamedTuple):
    """Penultimate features (B, d) and logits (B, K): clean f and g (None where no term needs them), then
    adversarial fa and ga."""

    f: Tensor | None
    g: Tensor | None
    fa: Tensor
    ga: Tensor


def needs_clean(recipe: Recipe) -> bool:
    """Whether the loss looks at clean images too: TRADES, ALP, MART, and AT with S2O."""
    return recipe.loss in _PAIRED or "s2o" in recipe.defences


def robust_terms(recipe: Recipe, out: Outputs, y: Tensor) -> dict[str, Tensor]:
    """Batch means, scalars with gradients: `robust`, the whole loss, and its terms where there are several.

    These are clean_ce or adv_ce; kl, pairing or weighted_kl, before their weight; MART: margin; S2O: s2o.

    Args:
        y: int64 (B,), or soft (B, K), which MART refuses: its margin and weight need one class.

    Raises:
        ValueError: soft labels with MART.
    """
    if recipe.loss == "mart" and y.is_floating_point():
        raise ValueError(
            "mart needs one class an image, got soft labels: train without cutmix, or with another loss"
        )
    on_clean = recipe.loss == "trades" or recipe.mart_bce_input == "clean"
    name = "clean_ce" if on_clean else "adv_ce"
    terms = {name: losses.cross_entropy(out.g if on_clean else out.ga, y).mean()}
    robust = terms[name]
    if "s2o" in recipe.defences:
        terms["s2o"] = second_order_loss(out.g, out.ga, y, recipe.s2o_diagonal).mean()
        robust = (1 - recipe.s2o_weight) * robust + recipe.s2o_weight * terms["s2o"]
    if recipe.loss == "mart":
        terms["margin"] = losses.margin(out.ga, y).mean()
        robust = robust + terms["margin"]
    if recipe.loss in _PAIRED:
        name = _PAIRED[recipe.loss]
        terms[name] = _paired(recipe, out.g, out.ga, y).mean()
        robust = robust + recipe.loss_weight * terms[name]
    return {"robust": robust} | (terms if len(terms) > 1 else {})


def trace(recipe: Recipe, out: Outputs, y: Tensor) -> Tensor:
    """Trace of the Hessian of the loss in the top-layer weight, (B,), in closed form, with gradients."""
    if recipe.loss == "at":
        return trace_of_hessian.at(out.fa, out.ga)
    pair = (out.f, out.g, out.fa, out.ga)
    stop = recipe.trh_stop_gradient
    if recipe.loss == "mart":
        return trace_of_hessian.mart(*pair, y, recipe.loss_weight, recipe.mart_bce_input, stop)
    of_loss = trace_of_hessian.trades if recipe.loss == "trades" else trace_of_hessian.alp
    return of_loss(*pair, recipe.loss_weight, stop)


def _paired(recipe: Recipe, g: Tensor, ga: Tensor, y: Tensor) -> Tensor:
    log_s, log_sa = losses.log_softmax(g), losses.log_softmax(ga)
    if recipe.loss_stop_gradient:
        log_s = log_s.detach()
    if recipe.loss == "alp":
        return losses.squared_softmax_distance(log_s, log_sa)
    divergence = losses.kl_divergence(log_s, log_sa)
    return divergence if recipe.loss == "trades" else losses.unlikeliness(log_s, y) * divergence
