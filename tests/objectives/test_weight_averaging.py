"""SWA: the average over steps by hand, in place and back, saved and loaded, and what it refuses."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import nn

from robustzoo.models.batch_norm import renew_statistics
from robustzoo.objectives.weight_averaging import WeightAverage
from tests.objectives.small import tiny_vit


def two_layers(width: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))


def weights(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def steps(module: nn.Module, average: WeightAverage, count: int) -> list[dict[str, torch.Tensor]]:
    """SGD steps on data of a seed, each taken in; the weights after every one."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5, momentum=0.9)
    points = []
    for _ in range(count):
        x, y = torch.randn(8, 2, generator=generator), torch.randint(2, (8,), generator=generator)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
        average.update()
        points.append(weights(module))
    return points


def equal(first: dict, second: dict) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_one_number_by_hand():
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 1.0)
    average = WeightAverage(module, 0.75)
    for value, expected in ((5.0, 2.0), (2.0, 2.0), (-6.0, 0.0)):
        nn.init.constant_(module.weight, value)
        average.update()
        assert average.state()["weight"].item() == expected


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.995])
def test_the_average_over_steps_by_hand(decay):
    """decay^n of the initial weights, and (1 - decay) decay^(n - i) of those after step i."""
    module = two_layers()
    start, average = weights(module), WeightAverage(module, decay)
    points = steps(module, average, 4)
    for name, averaged in average.state().items():
        expected = decay**4 * start[name].double()
        for i, point in enumerate(points):
            expected += (1 - decay) * decay ** (3 - i) * point[name].double()
        torch.testing.assert_close(averaged.double(), expected, rtol=1e-5, atol=1e-7)
    assert equal(weights(module), points[-1]), "the weights that are trained stay what they are"
    assert equal(average.state(), points[-1]) == (decay == 0.0)


def test_the_initial_weights_are_the_start():
    module = tiny_vit()
    average = WeightAverage(module, 0.995)
    assert equal(average.state(), weights(module))
    average.update()
    assert equal(average.state(), weights(module))
    with torch.no_grad():
        module.head.weight.add_(1.0)
    assert not torch.equal(average.state()["network.head.weight"], module.head.weight), "a copy"


@pytest.mark.parametrize("fails", [False, True])
def test_in_place_and_back_bit_for_bit(fails):
    module = two_layers()
    average = WeightAverage(module, 0.5)
    steps(module, average, 2)
    own, averaged = weights(module), {name: t.clone() for name, t in average.state().items()}
    try:
        with average.in_place():
            assert equal(weights(module), averaged) and not equal(averaged, own)
            if fails:
                raise KeyError
    except KeyError:
        assert fails
    assert equal(weights(module), own) and equal(average.state(), averaged)
    assert all(p.requires_grad and p.is_leaf for p in module.parameters())


def test_half_precision_weights_are_averaged_in_float32():
    module = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.constant_(module.weight, 1.0)
    average = WeightAverage(module, 0.995)
    nn.init.constant_(module.weight, 1.5)
    average.update()
    assert average.state()["weight"].dtype == torch.float32
    assert average.state()["weight"].item() == pytest.approx(1.0025, rel=1e-6)
    with average.in_place():
        assert module.weight.dtype == torch.bfloat16
    assert module.weight.item() == 1.5


def test_a_loaded_state_goes_on_bit_for_bit():
    module, other = two_layers(), two_layers()
    average = WeightAverage(module, 0.9)
    steps(module, average, 3)
    saved = {name: t.clone() for name, t in average.state().items()}
    resumed = WeightAverage(other, 0.9)
    other.load_state_dict(module.state_dict())
    resumed.load(dict(reversed(saved.items())))
    assert equal(resumed.state(), saved)
    steps(module, average, 2)
    steps(other, resumed, 2)
    assert equal(average.state(), resumed.state()) and not equal(average.state(), saved)


@pytest.mark.parametrize("wrong", ["another width", "a name less", "a name more"])
def test_the_state_of_another_network_is_refused(wrong):
    average = WeightAverage(two_layers(), 0.9)
    before = {name: t.clone() for name, t in average.state().items()}
    state = dict(before)
    if wrong == "another width":
        state = WeightAverage(two_layers(4), 0.9).state()
    elif wrong == "a name less":
        state.pop("2.bias")
    else:
        state["3.bias"] = torch.zeros(2)
    with pytest.raises(ValueError, match="of another network: resume the run"):
        average.load(state)
    assert equal(average.state(), before)


def test_running_statistics_of_averaged_weights_are_measured():
    """As torch's own `update_bn` measures them; the network in training keeps its own."""
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    average = WeightAverage(model, 0.5)
    images = list(torch.randn(4, 8, 2))
    with torch.no_grad():
        model[0].weight.mul_(3)
    model(images[0])
    average.update()
    own = {name: t.clone() for name, t in model.state_dict().items()}
    average.renew(lambda: renew_statistics(model, images))
    assert equal(model.state_dict(), own) and model[1].training and model[1].momentum == 0.1
    expected = deepcopy(model)
    with average.in_place():
        expected.load_state_dict(model.state_dict())
        shown = {name: t.clone() for name, t in model.state_dict().items()}
    torch.optim.swa_utils.update_bn(images, expected)
    assert all(
        torch.allclose(shown[f"1.{n}"], getattr(expected[1], n)) for n in ("running_mean", "running_var")
    )
    assert equal(model.state_dict(), own)
    again = WeightAverage(deepcopy(model), 0.5)
    again.load(average.state())
    assert equal(again.state(), average.state())


@pytest.mark.parametrize("decay", [-0.1, 1.0, 1.5, float("nan")])
def test_a_decay_outside_its_range_is_refused(decay):
    with pytest.raises(ValueError, match=rf"decay is {decay}; expected a number in \[0, 1\)"):
        WeightAverage(two_layers(), decay)
