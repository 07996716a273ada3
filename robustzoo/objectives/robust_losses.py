"""The robust loss of a training step: AT, TRADES, ALP and MART, each with or without S2O, as batch means.

Every function takes the recipe, logits of the clean and of the adversarial image, (B, K) each (`g` is None
where the method does not look at clean images), and labels, int64 (B,) or soft, float (B, K); MART takes
int64 only. It returns named terms, scalars with gradients, of which "robust" is what is minimised.

`recipe.loss_stop_gradient`: the clean softmax is a constant of the term that compares the two softmaxes.
With `s2o=False` a recipe of S2O is taken without it: what AWP climbs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from robustzoo.objectives.losses import (
    cross_entropy,
    kl_divergence,
    log_rest,
    log_softmax,
    runner_up_margin,
    squared_softmax_distance,
)
from robustzoo.objectives.second_order_statistics import s2o_loss

if TYPE_CHECKING:
    from robustzoo.registry import Recipe

Terms = dict[str, Tensor]


class SoftLabelError(ValueError):
    """Mixed labels for a loss that singles out the true class."""

    def __init__(self, y: Tensor) -> None:
        super().__init__(
            f"labels are soft, {y.dtype} of shape {tuple(y.shape)}; loss mart expects one class an image, "
            "int64 (B,): train without cutmix (cutmix=false), or with another loss"
        )


def at(recipe: Recipe, g: Tensor | None, ga: Tensor, y: Tensor, s2o: bool = True) -> Terms:
    """CE(g', y) (Madry et al. 2018)."""
    ce = cross_entropy(ga, y).mean()
    if recipe.s2o_weight is None or not s2o:
        return {"robust": ce}
    return _with_s2o(recipe, {"adversarial_ce": ce}, g, ga, y)


def trades(recipe: Recipe, g: Tensor, ga: Tensor, y: Tensor, s2o: bool = True) -> Terms:
    """CE(g, y) + loss_weight KL(s || s') (Zhang et al. 2019)."""
    terms = _with_s2o(recipe, {"clean_ce": cross_entropy(g, y).mean()}, g, ga, y, s2o)
    kl = kl_divergence(_clean_side(recipe, g), log_softmax(ga)).mean()
    return _plus(recipe, terms, "kl", kl)


def alp(recipe: Recipe, g: Tensor, ga: Tensor, y: Tensor, s2o: bool = True) -> Terms:
    """CE(g', y) + loss_weight |s - s'|^2 (Kannan et al. 2018, on softmaxes as in the paper)."""
    terms = _with_s2o(recipe, {"adversarial_ce": cross_entropy(ga, y).mean()}, g, ga, y, s2o)
    pairing = squared_softmax_distance(_clean_side(recipe, g), log_softmax(ga)).mean()
    return _plus(recipe, terms, "pairing", pairing)


def mart(recipe: Recipe, g: Tensor, ga: Tensor, y: Tensor, s2o: bool = True) -> Terms:
    """CE - log(1 - max_{k != y} s'_k) + loss_weight (1 - s_y) KL(s || s') (Wang et al. 2020).

    The cross-entropy acts on the adversarial logits, or with mart_bce_input "clean" on the clean ones.

    Raises:
        SoftLabelError: soft labels.
    """
    if y.is_floating_point():
        raise SoftLabelError(y)
    ce = cross_entropy(ga if recipe.mart_bce_input == "adv" else g, y).mean()
    margin = runner_up_margin(ga, y).mean()
    log_s = _clean_side(recipe, g)
    weighted = (log_rest(log_s, y).exp() * kl_divergence(log_s, log_softmax(ga))).mean()
    terms = _with_s2o(recipe, {"boosted_ce": ce, "margin": margin}, g, ga, y, s2o)
    return _plus(recipe, terms, "weighted_kl", weighted)


LOSSES: dict[str, Callable[..., Terms]] = {"at": at, "trades": trades, "alp": alp, "mart": mart}


def _clean_side(recipe: Recipe, g: Tensor) -> Tensor:
    log_s = log_softmax(g)
    return log_s.detach() if recipe.loss_stop_gradient else log_s


def _plus(recipe: Recipe, terms: Terms, name: str, term: Tensor) -> Terms:
    return terms | {"robust": terms["robust"] + recipe.loss_weight * term, name: term}


def _with_s2o(recipe: Recipe, ce: Terms, g: Tensor | None, ga: Tensor, y: Tensor, s2o: bool = True) -> Terms:
    """The sum of these cross-entropy parts as "robust"; with S2O (1 - s2o_weight) of it and s2o_weight of
    S2O's loss. MART's parts are its boosted cross-entropy and its margin, as in the S2O release."""
    plain = sum(ce.values())
    if recipe.s2o_weight is None or not s2o:
        return {"robust": plain, **ce}
    statistics = s2o_loss(g, ga, y, recipe.s2o_diagonal).mean()
    mixed = (1.0 - recipe.s2o_weight) * plain + recipe.s2o_weight * statistics
    return {"robust": mixed, **ce, "s2o": statistics}
