"""The layer relation and its inequality against automatic differentiation, on small networks in float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from robustzoo.diagnostics.relu_network import (
    ReluNetwork,
    block_square_norms,
    class_root,
    column_sums,
    eigenvalue_std,
    largest_entries,
    layer_traces,
)
from robustzoo.errors import RobustzooError
from tests.diagnostics.mlp import mlp, samples, weight_hessian

SHAPES = [(3, 7, 6, 4), (3, 5, 2), (3, 4), (3, 6, 5, 4, 3), (3, 8, 2)]


def block_norms(hessian, sizes):
    return torch.stack(
        [torch.stack([b.square().sum() for b in row.split(sizes, 1)]) for row in hessian.split(sizes)]
    )


@pytest.mark.parametrize("widths", SHAPES, ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_traces_equal_autograd(widths, bias):
    model = mlp(widths, seed=sum(widths), bias=bias)
    x, y = samples(classes=widths[-1])
    hessian, sizes = weight_hessian(model, x, y)
    expected = torch.stack([part.sum() for part in hessian.diagonal().split(sizes)])
    found = layer_traces(ReluNetwork.of(model), x)
    assert found.shape == (len(x), len(sizes))
    assert torch.allclose(found.mean(0), expected, rtol=0, atol=1e-8)


def test_a_single_sample_equals_autograd():
    model = mlp()
    x, y = samples()
    found = layer_traces(ReluNetwork.of(model), x)
    for i in range(len(x)):
        hessian, sizes = weight_hessian(model, x[i : i + 1], y[i : i + 1])
        expected = torch.stack([part.sum() for part in hessian.diagonal().split(sizes)])
        assert torch.allclose(found[i], expected, rtol=0, atol=1e-8)


def test_one_layer_is_the_closed_form():
    weight = torch.tensor([[0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert layer_traces(ReluNetwork((weight,), (None,)), x).item() == pytest.approx(25.0 * 0.5)


def test_the_printed_form_is_another_number():
    model = mlp((3, 5, 2))
    network = ReluNetwork.of(model)
    x, _ = samples(classes=2)
    inputs, logits = network.forward(x)
    s = logits.softmax(-1)
    jacobian = network.output_jacobians(inputs)[1]
    printed = ((s * (1 - s)).unsqueeze(-1) * jacobian.square()).sum(-2) * (inputs[1] > 0)
    printed = inputs[0].square().sum(-1) * printed.sum(-1)
    bound = inputs[0].square().sum(-1) * (
        (s.unsqueeze(-1) * jacobian.square()).sum(-2) * (inputs[1] > 0)
    ).sum(-1)
    exact = layer_traces(network, x)[:, 0]
    assert (exact - printed).abs().max() > 1e-3
    assert (exact <= bound + 1e-12).all()


@pytest.mark.parametrize("widths", SHAPES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_the_inequality_holds(widths, seed):
    network = ReluNetwork.of(mlp(widths, seed=seed))
    x, _ = samples(n=40, seed=seed)
    entries, c = largest_entries(network, x), column_sums(network)
    assert entries.shape == (40, network.depth + 1)
    assert (entries[:, :-1] <= entries[:, 1:] * c.square() * (1 + 1e-12)).all()


def test_the_inequality_is_tight_for_one_unit():
    """One class weight, one path: both sides are s w^2."""
    network = ReluNetwork((torch.tensor([[3.0], [0.0]], dtype=torch.float64),), (None,))
    entries = largest_entries(network, torch.tensor([[10.0]], dtype=torch.float64))[0]
    assert entries[0].item() == pytest.approx(9.0) and entries[1].item() == pytest.approx(1.0)
    assert column_sums(network).item() == 3.0


def test_gradient_of_the_trace_equals_finite_differences():
    torch.manual_seed(0)
    model = mlp((2, 4, 3))
    x, _ = samples(5, 2, 3)
    weights = [w.detach().requires_grad_() for w in ReluNetwork.of(model).weights]
    biases = ReluNetwork.of(model).biases
    assert torch.autograd.gradcheck(
        lambda *w: layer_traces(ReluNetwork(w, tuple(b.detach() for b in biases)), x).mean(0), weights
    )


def test_many_networks_at_once_equal_each_alone():
    models = [mlp(seed=seed) for seed in range(3)]
    alone = [ReluNetwork.of(model) for model in models]
    together = ReluNetwork(
        tuple(torch.stack(w) for w in zip(*(n.weights for n in alone), strict=True)),
        tuple(torch.stack(b) for b in zip(*(n.biases for n in alone), strict=True)),
    )
    x = torch.stack([samples(seed=seed)[0] for seed in range(3)])
    expected = torch.stack([layer_traces(network, x[i]) for i, network in enumerate(alone)])
    assert torch.allclose(layer_traces(together, x), expected, rtol=0, atol=1e-12)
    c = torch.stack([column_sums(network) for network in alone])
    assert torch.equal(column_sums(together), c)


@pytest.mark.parametrize("widths", SHAPES, ids=str)
def test_block_norms_equal_autograd(widths):
    model = mlp(widths, seed=3)
    x, y = samples(classes=widths[-1])
    hessian, sizes = weight_hessian(model, x, y)
    found = block_square_norms(ReluNetwork.of(model), x, y)
    assert torch.allclose(found, block_norms(hessian, sizes), rtol=1e-9, atol=1e-10)
    assert not found.requires_grad


def test_spread_equals_that_of_the_eigenvalues():
    model = mlp()
    x, y = samples()
    hessian, sizes = weight_hessian(model, x, y)
    norms = block_square_norms(ReluNetwork.of(model), x, y)
    traces = layer_traces(ReluNetwork.of(model), x).mean(0)
    expected = torch.linalg.eigvalsh(hessian).std(correction=0)
    found = eigenvalue_std(traces.sum(), norms.sum(), sum(sizes))
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    block = torch.linalg.eigvalsh(hessian[: sizes[0], : sizes[0]]).std(correction=0)
    assert eigenvalue_std(traces[0], norms[0, 0], sizes[0]).item() == pytest.approx(block.item(), rel=1e-9)


def test_equal_eigenvalues_have_no_spread():
    assert eigenvalue_std(torch.tensor(6.0), torch.tensor(12.0), 3).item() == 0.0


@pytest.mark.parametrize(
    "module",
    [
        nn.Linear(2, 2),
        nn.Sequential(),
        nn.Sequential(nn.Linear(2, 2), nn.GELU(), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
    ],
)
def test_other_modules_are_refused(module):
    with pytest.raises(RobustzooError, match=r"Linear, ReLU, Linear"):
        ReluNetwork.of(module)


@pytest.mark.parametrize("s", [[0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
def test_the_root_of_the_class_matrix(s):
    s = torch.tensor(s, dtype=torch.float64)
    root = class_root(s.unsqueeze(0))[0]
    assert root.shape == (2, 3)
    assert torch.allclose(root.T @ root, torch.diag(s) - torch.outer(s, s), rtol=0, atol=1e-15)
