"""The gradient of one step at a fixed x_adv, for every loss and defence, against a plain reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from robustzoo.models.pixel_model import PixelModel, pixel_model
from robustzoo.objectives import Objective
from robustzoo.objectives.weight_averaging import WeightAverage
from robustzoo.objectives.weight_perturbation import perturbed
from robustzoo.registry import Recipe, recipe
from tests.objectives.reference import step_gradient

LOSSES = ("at", "trades", "alp", "mart")
DEFENCES = ("base", "trh", "s2o", "awp", "swa", "trh_awp", "s2o_awp", "trh_awp_swa")
METHODS = [f"{loss}_{defence}" for loss in LOSSES for defence in DEFENCES]
# Every third, which has every loss and every defence; the others are slow.
SOME = [pytest.param(m, marks=pytest.mark.slow if i % 3 else ()) for i, m in enumerate(METHODS)]
# Strong enough for each to be seen: the recipes' own are a hundredth of it.
STRONG = {
    "trh": {"trh_lambda": 0.05, "trh_schedule": "constant"},
    "s2o": {"s2o_weight": 0.5},
    "awp": {"awp_delta": 0.02},
}


def strong(method: str, **changes) -> Recipe:
    for defence, values in STRONG.items():
        if defence in method:
            changes |= values
    return recipe(f"vit_micro2.digits_linf.{method}", changes)


def network(made: Recipe, dtype: torch.dtype = torch.float64) -> PixelModel:
    """ViT-Micro/2 with a head that makes its logits differ, as they do in the middle of a training."""
    torch.manual_seed(0)
    model = pixel_model(made)
    torch.nn.init.normal_(model.head.weight, std=0.2)
    return model.to(dtype)


def batch(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(3, 1, 8, 8, generator=generator)
    move = 0.3 * torch.randn(3, 1, 8, 8, generator=generator).sign()
    return x.to(dtype), (x + move).clamp(0, 1).to(dtype), torch.tensor([7, 0, 2])


def gradient(made: Recipe, model: PixelModel, x: Tensor, x_adv: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What a step of training leaves for the optimizer."""
    objective, step = Objective(made), made.total_steps - 1
    moved, directions = objective.ascent(model, x, x_adv, y) if objective.ascends(step) else ([], [])
    with perturbed(moved, directions, made.awp_delta or 0.0):
        features = model.features(objective.inputs(x, x_adv))
        terms = objective.terms(features, model.head(features), y, step=step)
        names, weights = zip(*model.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(terms["total"], weights), strict=True))


def flat(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([gradients[name].flatten() for name in sorted(gradients)])


def distance(gradients: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """|a - b| / |b| over all weights."""
    a, b = flat(gradients).double(), flat(others).double()
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("method", SOME)
def test_the_gradient_of_a_step_is_the_written_out_one(method):
    made, (x, x_adv, y) = strong(method), batch()
    model = network(made)
    before = flat(dict(model.named_parameters())).detach().clone()
    ours = gradient(made, model, x, x_adv, y)
    assert torch.equal(flat(dict(model.named_parameters())), before)
    theirs = step_gradient(made, model, x, x_adv, y)
    largest = max(g.norm() for g in theirs.values())
    for name in theirs:  # layer by layer; the bias of the keys has a gradient of 0, up to rounding
        assert (ours[name] - theirs[name]).norm() <= 1e-8 * theirs[name].norm() + 1e-12 * largest, name
    # Every defence but SWA counts: base's gradient is another, and so is that with one of them less.
    for left in [(), *(tuple(d for d in made.defences if d != out) for out in made.defences)]:
        less = gradient(strong("_".join((made.loss, *(left or ["base"])))), model, x, x_adv, y)
        if set(made.defences) - set(left) <= {"swa"}:
            assert torch.equal(flat(ours), flat(less))
        else:
            assert distance(ours, less) > 0.01, left


@pytest.mark.parametrize(
    "method", ["at_s2o_awp", "trades_trh_awp", "alp_trh", "mart_trh_awp_swa", "mart_s2o"]
)
def test_in_the_float32_of_training(method):
    made = strong(method)
    ours = gradient(made, network(made, torch.float32), *batch(torch.float32))
    assert distance(ours, step_gradient(made, network(made), *batch())) < 1e-5


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("trades_trh", {"trh_stop_gradient": False}),
        ("alp_trh", {"trh_stop_gradient": False}),
        ("mart_trh", {"trh_stop_gradient": False}),
        ("mart_trh", {"mart_bce_input": "clean"}),
        ("mart_trh", {"mart_bce_input": "clean", "trh_stop_gradient": False}),
        ("trades_awp", {"loss_stop_gradient": True}),
        ("alp_base", {"loss_stop_gradient": True}),
        ("mart_base", {"loss_stop_gradient": True}),
        ("trades_s2o", {"loss_stop_gradient": True}),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_every_switch_changes_the_gradient_as_written_out(method, changes):
    made, unchanged, data = strong(method, **changes), strong(method), batch()
    model = network(made)
    ours = gradient(made, model, *data)
    assert distance(ours, step_gradient(made, model, *data)) < 1e-9
    assert distance(ours, gradient(unchanged, model, *data)) > 1e-3


def test_the_losses_differ():
    data, model = batch(), network(strong("at_base"))
    gradients = [gradient(strong(f"{loss}_base"), model, *data) for loss in LOSSES]
    for i, one in enumerate(gradients):
        assert all(distance(one, other) > 0.01 for other in gradients[:i])


def test_a_step_of_awp_with_trh_starts_from_the_unperturbed_weights():
    """w - rate (gradient at w + v + 2 gamma w): neither v nor a decay of w + v is left."""
    made, data = strong("trades_trh_awp", trh_gamma=0.01), batch()
    model, objective = network(made), Objective(made)
    expected = {
        name: w.detach() - 0.1 * (g + 0.02 * w.detach())
        for (name, w), g in zip(
            model.named_parameters(), step_gradient(made, model, *data).values(), strict=True
        )
    }
    for name, g in gradient(made, model, *data).items():
        model.get_parameter(name).grad = g
    torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=objective.weight_decay).step()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(weight.detach(), expected[name], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("loss", LOSSES)
def test_swa_steps_as_base_and_averages_apart(loss):
    made, data = strong(f"{loss}_swa", swa_decay=0.5), batch(torch.float32)
    swa, base = network(made, torch.float32), network(made, torch.float32)
    average = WeightAverage(swa, made.swa_decay)
    start = flat(average.state()).clone()
    points = []
    for _ in range(2):
        for model, of in ((swa, made), (base, strong(f"{loss}_base"))):
            for name, g in gradient(of, model, *data).items():
                model.get_parameter(name).grad = g
            torch.optim.SGD(model.parameters(), lr=0.1).step()
        average.update()
        points.append(flat(dict(swa.named_parameters())).detach().clone())
    assert torch.equal(points[-1], flat(dict(base.named_parameters())))
    averaged = flat(average.state())
    torch.testing.assert_close(averaged, 0.25 * start + 0.25 * points[0] + 0.5 * points[1])
    assert (averaged - points[-1]).norm() > 0.1 * (points[-1] - start).norm()
