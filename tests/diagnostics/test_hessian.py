"""Products, traces, norms and spectra against torch's own Hessian, on small problems in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from robustzoo.diagnostics.hessian import LossHessian, layer_of
from robustzoo.diagnostics.spectrum import eigenvalues, extreme_eigenvalues, spectral_density
from robustzoo.errors import RobustzooError
from tests.diagnostics.mlp import mlp, samples, weight_hessian


def quadratic(matrix: torch.Tensor) -> LossHessian:
    """The Hessian of v' A v / 2 + b' v in one parameter: A."""
    v = torch.arange(1.0, len(matrix) + 1, dtype=torch.float64)
    return LossHessian(lambda p: 0.5 * p["v"] @ matrix @ p["v"] + p["v"].sum(), {"v": v}, layers=str)


def symmetric(n: int, seed: int = 0) -> torch.Tensor:
    a = torch.randn(n, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return a + a.T


@pytest.fixture(scope="module")
def network():
    """(Hessian of the weights by LossHessian, the same by torch, sizes)."""
    model = mlp()
    x, y = samples()
    parameters = dict(model.named_parameters())
    hessian = LossHessian(
        lambda p: nn.functional.cross_entropy(functional_call(model, p, (x,)), y),
        parameters,
        [name for name in parameters if name.endswith("weight")],
    )
    return hessian, *weight_hessian(model, x, y)


def test_matrix_equals_autograd(network):
    hessian, expected, sizes = network
    assert torch.allclose(hessian.matrix(chunk=7), expected, rtol=0, atol=1e-12)
    assert list(hessian.sizes().values()) == sizes and hessian.size == sum(sizes)


def test_exact_traces_equal_autograd(network):
    hessian, expected, sizes = network
    blocks = [part.sum().item() for part in expected.diagonal().split(sizes)]
    found = hessian.exact_traces(chunk=5)
    assert list(found) == ["0", "2", "4"]
    assert list(found.values()) == pytest.approx(blocks, abs=1e-10)


def test_diagonal_equals_autograd_everywhere_and_at_some_places(network):
    hessian, expected, _ = network
    assert torch.allclose(hessian.diagonal(chunk=7), expected.diagonal(), rtol=0, atol=1e-12)
    places = torch.tensor([40, 3, 3, 0, len(expected) - 1])
    found = hessian.diagonal(places, chunk=2)
    assert torch.allclose(found, expected.diagonal()[places.sort().values], rtol=0, atol=1e-12)


def test_product_equals_autograd(network):
    hessian, expected, _ = network
    vector = hessian.signs(3, 1)
    flat = torch.cat([v.flatten() for v in vector.values()])
    found = torch.cat([v.flatten() for v in hessian.product(vector).values()])
    assert torch.allclose(found, expected @ flat, rtol=0, atol=1e-12)


def test_one_layers_block(network):
    hessian, expected, sizes = network
    middle = slice(sizes[0], sizes[0] + sizes[1])
    assert torch.allclose(hessian.of_layer("2").matrix(), expected[middle, middle], rtol=0, atol=1e-12)


def test_probes_are_within_their_errors(network):
    hessian, expected, sizes = network
    layers, whole, square = hessian.probe(400, seed=1)
    exact = [part.sum().item() for part in expected.diagonal().split(sizes)]
    for estimate, value in zip(layers.values(), exact, strict=True):
        assert abs(estimate.value - value) < 4 * estimate.standard_error
    assert abs(whole.value - sum(exact)) < 4 * whole.standard_error
    assert abs(square.value - expected.square().sum().item()) < 4 * square.standard_error


def test_probes_of_a_diagonal_hessian_are_exact():
    layers, whole, square = quadratic(torch.diag(torch.tensor([1.0, -2.0, 4.0], dtype=torch.float64))).probe(
        3
    )
    assert (whole.value, whole.standard_error) == (pytest.approx(3.0), pytest.approx(0.0, abs=1e-12))
    assert layers["v"] == whole
    assert (square.value, square.standard_error) == (pytest.approx(21.0), pytest.approx(0.0, abs=1e-12))


def test_probes_are_keyed():
    hessian = quadratic(symmetric(6))
    assert hessian.probe(5, seed=2) == hessian.probe(5, seed=2)
    assert hessian.probe(5, seed=2) != hessian.probe(5, seed=3)
    assert torch.equal(hessian.signs(0, 1)["v"].abs(), torch.ones(6, dtype=torch.float64))


def test_eigenvalues_of_a_known_matrix():
    matrix = symmetric(9)
    expected = torch.linalg.eigvalsh(matrix)
    assert torch.allclose(eigenvalues(quadratic(matrix)), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [5, 100])
def test_extremes_are_those_of_the_whole_spectrum(n):
    matrix = symmetric(n)
    expected = torch.linalg.eigvalsh(matrix).numpy()
    smallest, largest = extreme_eigenvalues(quadratic(matrix), k=2)
    assert smallest == pytest.approx(expected[:2], rel=1e-5)
    assert largest == pytest.approx(expected[-2:], rel=1e-5)


def test_extremes_of_a_hessian_that_is_mostly_zero():
    """A cluster at 0 beside a few large eigenvalues, as the top layer of a classifier has."""
    diagonal = torch.zeros(150, dtype=torch.float64)
    diagonal[:3] = torch.tensor([5.0, 40.0, 7.0])
    smallest, largest = extreme_eigenvalues(quadratic(torch.diag(diagonal)), k=2)
    assert smallest == pytest.approx([0.0, 0.0], abs=1e-4)
    assert largest == pytest.approx([7.0, 40.0], abs=1e-4)
    smallest, largest = extreme_eigenvalues(quadratic(-torch.diag(diagonal)), k=1)
    assert (smallest[0], largest[0]) == (pytest.approx(-40.0, abs=1e-4), pytest.approx(0.0, abs=1e-4))
    smallest, largest = extreme_eigenvalues(quadratic(0.0 * torch.diag(diagonal)), k=1)
    assert (smallest[0], largest[0]) == (0.0, 0.0)


def test_density_has_the_moments_of_its_probe():
    matrix = symmetric(12)
    hessian = quadratic(matrix)
    nodes, weights = spectral_density(hessian, probes=1, steps=12, seed=4)
    z = hessian.signs(4, 0)["v"]
    assert weights.sum() == pytest.approx(1.0)
    for power in range(5):
        expected = (z @ torch.linalg.matrix_power(matrix, power) @ z / 12).item()
        assert (weights * nodes**power).sum() == pytest.approx(expected, rel=1e-8)
    assert (np.diff(nodes) >= 0).all()


def test_density_of_a_multiple_of_the_identity_is_a_point():
    nodes, weights = spectral_density(quadratic(3.0 * torch.eye(7, dtype=torch.float64)), probes=2, steps=5)
    assert nodes == pytest.approx([3.0, 3.0]) and weights == pytest.approx([0.5, 0.5])


def test_a_loss_without_curvature_has_zero_traces():
    hessian = LossHessian(lambda p: 2.0 * p["a"].sum(), {"a": torch.ones(3), "b": torch.ones(2)}, layers=str)
    assert hessian.exact_traces() == {"a": 0.0, "b": 0.0}
    assert hessian.diagonal().tolist() == [0.0] * 5
    assert torch.equal(hessian.matrix(), torch.zeros(5, 5))


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("network.blocks.0.attn.qkv.weight", "blocks.0"),
        ("network.head.bias", "head"),
        ("network.patch_embed.proj.weight", "patch_embed"),
        ("network.patch_embed.backbone.stages.0.blocks.1.conv1.weight", "patch_embed.backbone.stages.0"),
        ("network.cls_token", "cls_token"),
        ("2.weight", "2"),
    ],
)
def test_layer_names(name, layer):
    assert layer_of(name) == layer


ONE = {"v": torch.ones(2)}


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda h: h.probe(1), "at least 2"),
        (lambda h: h.of_layer("w"), "there are: v"),
        (lambda h: extreme_eigenvalues(h, k=5), r"1\.\.4"),
        (lambda h: spectral_density(h, probes=0), "at least 1"),
        (lambda h: LossHessian(lambda p: p["v"].sum(), ONE, ["w"]), "no parameter 'w'"),
        (lambda h: LossHessian(lambda p: p["v"], ONE), "one finite number"),
        (lambda h: LossHessian(lambda p: p["v"].sum() / 0.0, ONE), "one finite number"),
        (lambda h: LossHessian(lambda p: p["v"].square().sum(), {"v": torch.ones(9_000)}).matrix(), "large"),
    ],
)
def test_bad_requests_are_refused(ask, words):
    with pytest.raises(RobustzooError, match=words):
        ask(quadratic(symmetric(4)))
