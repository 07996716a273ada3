"""AWP: the size of its moves, what it leaves alone, and that no trace of it stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from robustzoo.models.pixel_model import pixel_model
from robustzoo.objectives import Objective
from robustzoo.objectives.weight_perturbation import perturbations, perturbed, perturbed_parameters
from robustzoo.registry import recipe
from tests.objectives.reference import losses
from tests.objectives.small import tiny_vit

DELTA = 0.0005


def directions_of(parameters, scale: float = 1.0):
    generator = torch.Generator().manual_seed(4)
    return [scale * torch.randn(p.shape, generator=generator) for p in parameters]


def snapshot(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def norm(tensor: torch.Tensor) -> float:
    return tensor.detach().double().norm().item()


@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e-25, 1e25])
def test_every_layer_moves_by_delta_of_its_size(scale):
    """Along its direction, however small the gradients: their squares leave float32 at 1e-25 and 1e25."""
    parameters = perturbed_parameters(tiny_vit())
    directions = directions_of(parameters, scale)
    moves = list(perturbations(parameters, directions, DELTA))
    assert len(moves) == len(parameters) > 10
    for weight, direction, move in zip(parameters, directions, moves, strict=True):
        assert norm(move) == pytest.approx(DELTA * norm(weight), rel=1e-6, abs=0)
        cosine = functional.cosine_similarity(
            move.double().flatten(), direction.double().flatten() / scale, dim=0
        )
        assert cosine.item() == pytest.approx(1.0, abs=1e-9)


def test_a_large_layer_moves_by_delta_of_its_size():
    """ViT-L's widest weight: a float32 sum over all of its squares at once would be off by 1e-4."""
    weight = torch.randn(4096, 1024, generator=torch.Generator().manual_seed(5)).abs_().add_(1.0)
    (move,) = perturbations([weight], [weight.flip(1)], DELTA)
    assert norm(move) == pytest.approx(DELTA * norm(weight), rel=1e-6, abs=0)


def test_the_weights_of_a_transformer_but_not_its_tokens_norms_and_biases():
    model = tiny_vit()
    names = {id(p): name for name, p in model.named_parameters()}
    moved = {names[id(p)] for p in perturbed_parameters(model)}
    layers = ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    expected = {f"network.blocks.{block}.{layer}.weight" for block in range(4) for layer in layers}
    assert moved == expected | {"network.patch_embed.proj.weight", "network.head.weight"}


def test_the_block_holds_moved_weights_and_leaves_them_bit_for_bit():
    model = tiny_vit()
    before, parameters = snapshot(model), perturbed_parameters(model)
    directions = directions_of(parameters)
    moves = dict(zip(map(id, parameters), perturbations(parameters, directions, DELTA), strict=True))
    with perturbed(parameters, directions, DELTA):
        for name, p in model.named_parameters():
            if id(p) in moves:
                assert torch.equal(p, before[name] + moves[id(p)]) and not torch.equal(p, before[name])
            else:
                assert torch.equal(p, before[name]), name
            assert p.requires_grad and p.is_leaf
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("bad", ["in the block", "too few directions", "a direction of another shape"])
def test_weights_come_back_after_an_exception(bad):
    model = tiny_vit()
    before, parameters = snapshot(model), perturbed_parameters(model)
    directions = directions_of(parameters)
    if bad == "too few directions":
        directions = directions[:-1]
    if bad == "a direction of another shape":
        directions[-1] = torch.ones(3, 7)
    with pytest.raises((KeyError, ValueError, RuntimeError)), perturbed(parameters, directions, DELTA):
        assert not torch.equal(parameters[0], before["network.patch_embed.proj.weight"])
        raise KeyError("in the block")
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_zero_direction_or_weight_moves_nothing():
    weights = [torch.randn(3, 2), torch.zeros(3, 2), torch.zeros(3, 2)]
    for move in perturbations(weights, [torch.zeros(3, 2), torch.ones(3, 2), torch.zeros(3, 2)], 0.5):
        assert torch.equal(move, torch.zeros(3, 2))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_direction_that_is_no_number_shows(bad):
    direction = torch.ones(3, 2)
    direction[1, 1] = bad
    (move,) = perturbations([torch.ones(3, 2)], [direction], 0.5)
    assert move.isnan().any()


@pytest.mark.parametrize(
    "method",
    ["at_awp", "trades_awp", "alp_awp", "mart_awp", "at_s2o_awp", "trades_s2o_awp", "trades_trh_awp"],
)
def test_the_ascent_is_the_gradient_of_the_robust_loss(method):
    """Of the loss without S2O and without the trace, for the weights that move; nothing is left in `grad`."""
    torch.manual_seed(0)
    made = recipe(f"vit_micro2.digits_linf.{method}")
    objective, model = Objective(made), pixel_model(made).double()
    x = torch.rand(4, 1, 8, 8, dtype=torch.float64)
    x_adv, y = (x + 0.1 * torch.randn_like(x)).clamp(0, 1), torch.tensor([3, 1, 4, 1])
    parameters, directions = objective.ascent(model, x, x_adv, y)
    assert all(p.grad is None for p in model.parameters())
    assert [id(p) for p in parameters] == [id(p) for p in perturbed_parameters(model)]

    weights = dict(model.named_parameters())
    loss, _ = losses(made, model, weights, x, x_adv, y, s2o=False)
    expected = torch.autograd.grad(loss, parameters)
    for ours, theirs in zip(directions, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-14)
    assert all(direction.abs().sum() > 0 for direction in directions)
