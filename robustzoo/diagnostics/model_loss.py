"""The robust loss of a model of the zoo as a function of its parameters, at fixed adversarial points."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.func import functional_call

from robustzoo.data import ImageDataset
from robustzoo.errors import RobustzooError
from robustzoo.models.pixel_model import FeaturesAndLogits, PixelModel
from robustzoo.objectives import trace_of_hessian
from robustzoo.objectives.objective import Objective
from robustzoo.registry import Recipe
from robustzoo.registry.extensions import of_packages
from robustzoo.registry.recipes import changed_name, science_digest


@dataclass(frozen=True)
class Points:
    """Images x (B, C, H, W) in [0, 1], their adversarial points x_adv, labels y (B,) int64."""

    x: Tensor
    x_adv: Tensor
    y: Tensor


def adversarial_points(
    model: PixelModel, dataset: ImageDataset, n: int | None = None, seed: int = 0, batch: int = 64
) -> Points:
    """The first n images of a data set under the recipe's own training attack at its full radius.

    Raises:
        RobustzooError: a model without a recipe, or n out of range.
    """
    if model.recipe is None:
        raise RobustzooError("the model has no recipe, so its loss is unknown; load it by name or folder")
    count = len(dataset) if n is None else n
    if not 1 <= count <= len(dataset):
        raise RobustzooError(f"n is {n}; expected 1..{len(dataset)}, the images of {dataset.key}")
    objective = Objective(model.recipe)
    made = []
    for start in range(0, count, batch):
        ids = torch.arange(start, min(start + batch, count))
        items = [dataset[int(i)] for i in ids]
        x, y = torch.stack([item[0] for item in items]), torch.tensor([item[1] for item in items])
        x_adv = objective.attack(
            model, x, y, step=model.recipe.total_steps, seed=seed, epochs=torch.zeros_like(ids), ids=ids
        )
        made.append((x, x_adv, y))
    return Points(*(torch.cat(parts) for parts in zip(*made, strict=True)))


def loss_function(
    model: PixelModel, points: Points, *, stop_gradient: bool | None = None, double: bool = False
) -> tuple[Callable[[dict[str, Tensor]], Tensor], dict[str, Tensor]]:
    """The mean robust loss at fixed points as a function of the parameters, and the parameters' values.

    Args:
        model: in eval mode, with a recipe; left as it is.
        stop_gradient: whether the clean softmax in the KL (or pairing) is a constant, as in the paper's
            traces; None: as the recipe trains. Without effect for adversarial training.
        double: compute in float64.

    Returns:
        (parameters by name -> scalar, parameters by name): what `LossHessian` takes.
    """
    recipe = _with_stop_gradient(_recipe(model), stop_gradient)
    objective = Objective(recipe)
    if double:
        model = copy.deepcopy(model).double()
    dtype = torch.float64 if double else torch.float32
    inputs = objective.inputs(points.x.to(dtype), points.x_adv.to(dtype))
    network = FeaturesAndLogits(model)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        renamed = {f"pixel_model.{name}": value for name, value in values.items()}
        features, logits = functional_call(network, renamed, (inputs,))
        return objective.terms(features, logits, points.y, step=0)["robust"]

    return loss, parameters


def top_layer_trace(model: PixelModel, points: Points, *, stop_gradient: bool = True) -> float:
    """The mean trace of the Hessian in the top layer's weight (no bias), in closed form, float64.

    Of the loss that the recipe's name begins with; a term of S2O beside it is no part of this trace, as it is
    none of TrH's, but it is one of `loss_function`.
    """
    recipe = _recipe(model)
    with torch.no_grad():
        fa = model.features(points.x_adv)
        f = model.features(points.x) if recipe.loss != "at" else fa
        g, ga = model.head(f).double(), model.head(fa).double()
        f, fa = f.double(), fa.double()
        if recipe.loss == "at":
            traces = trace_of_hessian.at(fa, ga)
        elif recipe.loss == "mart":
            traces = trace_of_hessian.mart(
                f, g, fa, ga, points.y, recipe.loss_weight, recipe.mart_bce_input, stop_gradient
            )
        else:
            closed_form = {"trades": trace_of_hessian.trades, "alp": trace_of_hessian.alp}[recipe.loss]
            traces = closed_form(f, g, fa, ga, recipe.loss_weight, stop_gradient)
    return traces.mean().item()


@torch.no_grad()
def square_norm(model: PixelModel) -> float:
    """|theta|^2 over all parameters, summed in float64."""
    return sum(p.double().square().sum().item() for p in model.parameters())


def _recipe(model: PixelModel) -> Recipe:
    if model.recipe is None:
        raise RobustzooError("the model has no recipe, so its loss is unknown; load it by name or folder")
    if brought := of_packages(model.recipe.science):
        raise RobustzooError(
            f"{model.name} was trained with {brought[0][1]}, and code of packages runs in training alone; "
            "diagnose a model whose loss and defences are the catalog's"
        )
    if model.training:
        raise RobustzooError("the model is in training mode; call model.eval() first")
    return model.recipe


def _with_stop_gradient(recipe: Recipe, stop_gradient: bool | None) -> Recipe:
    if stop_gradient in (None, recipe.loss_stop_gradient) or recipe.loss == "at":
        return recipe
    digest = science_digest(recipe.science | {"loss_stop_gradient": stop_gradient})
    return replace(
        recipe, loss_stop_gradient=stop_gradient, name=changed_name(recipe.base_name, digest, recipe.dataset)
    )
