"""Every closed form against automatic differentiation: values, training gradients, extreme logits."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import hessian

from robustzoo.objectives import trace_of_hessian as trh

WEIGHT = 6.0


@dataclass
class Problem:
    """A top layer: features (B, d), weight (d, K), labels (B,)."""

    f: Tensor
    fa: Tensor
    W: Tensor
    y: Tensor

    def arguments(self, W: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        W = self.W if W is None else W
        return self.f, self.f @ W, self.fa, self.fa @ W


def problem(classes: int, features: int = 5, batch: int = 3, spread: float = 1.0) -> Problem:
    generator = torch.Generator().manual_seed(100 * classes + features)
    f = torch.randn(batch, features, generator=generator, dtype=torch.float64)
    fa = f + 0.5 * torch.randn(batch, features, generator=generator, dtype=torch.float64)
    W = spread * torch.randn(features, classes, generator=generator, dtype=torch.float64)
    return Problem(f, fa, W, torch.randint(classes, (batch,), generator=generator))


# The losses, written naively. `constant` is detach for the stop-gradient variants and the identity otherwise.
def ce(g, y):
    return -g.log_softmax(-1)[y]


def kl(g, ga):
    return (g.softmax(-1) * (g.log_softmax(-1) - ga.log_softmax(-1))).sum()


def distance(g, ga):
    return (g.softmax(-1) - ga.softmax(-1)).square().sum()


def margin(ga, y):
    s = ga.softmax(-1)
    kappa = max((k for k in range(len(s)) if k != y), key=lambda k: s[k].item())
    return -torch.log(1 - s[kappa])


def weighted_kl(g, ga, y):
    return (1 - g.softmax(-1)[y]) * kl(g, ga)


def cases():
    """(id, loss(g, ga, y) of one sample, trace(f, g, fa, ga, y) of a batch)."""
    yield "at", lambda g, ga, y: ce(ga, y), lambda f, g, fa, ga, y: trh.at(fa, ga)
    yield "cross_entropy", lambda g, ga, y: ce(g, y), lambda f, g, fa, ga, y: trh.cross_entropy(f, g)
    yield "margin", lambda g, ga, y: margin(ga, y), lambda f, g, fa, ga, y: trh.margin(fa, ga, y)
    for stop in (True, False):

        def held(g, stop=stop):
            return g.detach() if stop else g

        def name(text, stop=stop):
            return f"{text}-{'stop' if stop else 'full'}"

        yield (
            name("kl"),
            lambda g, ga, y, held=held: kl(held(g), ga),
            lambda f, g, fa, ga, y, stop=stop: trh.kl(f, g, fa, ga, stop_gradient=stop),
        )
        yield (
            name("squared_softmax_distance"),
            lambda g, ga, y, held=held: distance(held(g), ga),
            lambda f, g, fa, ga, y, stop=stop: trh.squared_softmax_distance(f, g, fa, ga, stop_gradient=stop),
        )
        yield (
            name("weighted_kl"),
            lambda g, ga, y, held=held: weighted_kl(held(g), ga, y),
            lambda f, g, fa, ga, y, stop=stop: trh.weighted_kl(f, g, fa, ga, y, stop_gradient=stop),
        )
        yield (
            name("trades"),
            lambda g, ga, y, held=held: ce(g, y) + WEIGHT * kl(held(g), ga),
            lambda f, g, fa, ga, y, stop=stop: trh.trades(f, g, fa, ga, WEIGHT, stop_gradient=stop),
        )
        yield (
            name("alp"),
            lambda g, ga, y, held=held: ce(ga, y) + WEIGHT * distance(held(g), ga),
            lambda f, g, fa, ga, y, stop=stop: trh.alp(f, g, fa, ga, WEIGHT, stop_gradient=stop),
        )
        for bce in ("adv", "clean"):
            yield (
                name(f"mart-{bce}"),
                lambda g, ga, y, held=held, bce=bce: (
                    ce(ga if bce == "adv" else g, y) + margin(ga, y) + WEIGHT * weighted_kl(held(g), ga, y)
                ),
                lambda f, g, fa, ga, y, stop=stop, bce=bce: trh.mart(
                    f, g, fa, ga, y, WEIGHT, bce_input=bce, stop_gradient=stop
                ),
            )


CASES = {name: (loss, trace) for name, loss, trace in cases()}


def autograd_trace(loss, p: Problem, W: Tensor, create_graph: bool = False) -> Tensor:
    """Tr Hess_W of `loss`, (B,), from the whole (dK x dK) Hessian of every sample."""
    traces = []
    for f, fa, y in zip(p.f, p.fa, p.y, strict=True):
        full = hessian(lambda V, f=f, fa=fa, y=y: loss(f @ V, fa @ V, y), W, create_graph=create_graph)
        traces.append(full.reshape(W.numel(), W.numel()).trace())
    return torch.stack(traces)


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_autograd_hessian(case, classes):
    loss, trace = CASES[case]
    p = problem(classes)
    torch.testing.assert_close(
        trace(*p.arguments(), p.y), autograd_trace(loss, p, p.W), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("spread", [0.05, 4.0])
@pytest.mark.parametrize("case", CASES)
def test_equals_the_autograd_hessian_for_flat_and_sure_predictions(case, spread):
    loss, trace = CASES[case]
    p = problem(6, spread=spread)
    torch.testing.assert_close(trace(*p.arguments(), p.y), autograd_trace(loss, p, p.W), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_training_gradient_is_that_of_the_autograd_trace(case):
    loss, trace = CASES[case]
    p = problem(4, features=3, batch=2)
    W = p.W.clone().requires_grad_(True)
    (ours,) = torch.autograd.grad(trace(*p.arguments(W), p.y).sum(), W)
    (theirs,) = torch.autograd.grad(autograd_trace(loss, p, W, create_graph=True).sum(), W)
    torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_gradcheck(case):
    _, trace = CASES[case]
    p = problem(4, features=3, batch=2)
    f, g, fa, _ = p.arguments()
    if case.endswith("stop"):
        # With the clean softmax a constant, a finite difference must hold it still as well.
        assert torch.autograd.gradcheck(lambda V, a: trace(f, g, a, a @ V, p.y), _leaves(p.W, fa))
    else:
        assert torch.autograd.gradcheck(lambda V, a, b: trace(a, a @ V, b, b @ V, p.y), _leaves(p.W, f, fa))


@pytest.mark.parametrize("case", ["kl-stop", "squared_softmax_distance-stop", "weighted_kl-stop"])
def test_stop_gradient_holds_the_clean_side_constant(case):
    p = problem(5)
    f, g, fa, ga = p.arguments()
    g = g.clone().requires_grad_(True)
    f = f.clone().requires_grad_(True)
    trace = CASES[case][1](f, g, fa.clone().requires_grad_(True), ga, p.y)
    assert torch.autograd.grad(trace.sum(), [f, g], allow_unused=True) == (None, None)


def test_expected_results(shared):
    problems = json.loads((shared / "oracle" / "trace_of_hessian.json").read_text())
    assert len(problems) == 10
    for row in problems:
        f, fa, W = (torch.tensor(row[key], dtype=torch.float64) for key in ("f", "fp", "W"))
        p = Problem(f[None], fa[None], W, torch.tensor([row["y"]]))
        args = p.arguments()
        got = {
            "at": trh.at(*args[2:]),
            "trades_stop": trh.trades(*args, 6.0),
            "kl_full": trh.kl(*args, stop_gradient=False),
            "alp_stop": trh.squared_softmax_distance(*args),
            "alp_full": trh.squared_softmax_distance(*args, stop_gradient=False),
            "margin": trh.margin(*args[2:], p.y),
            "wkl_stop": trh.weighted_kl(*args, p.y),
            "wkl_full": trh.weighted_kl(*args, p.y, stop_gradient=False),
        }
        assert got.keys() == row["trace"].keys()
        for key, value in got.items():
            assert value.item() == pytest.approx(row["trace"][key], rel=1e-9, abs=1e-11), key


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", CASES)
def test_extreme_logits_stay_finite(case, dtype):
    one_hot = 1e4 * torch.eye(5, dtype=dtype)
    g = torch.cat((one_hot, -one_hot, torch.zeros(1, 5, dtype=dtype)))
    g, ga = (part.contiguous() for part in (g.repeat_interleave(11, 0), g.repeat(11, 1)))
    f, fa = torch.ones(len(g), 3, dtype=dtype), torch.full((len(g), 3), 2.0, dtype=dtype)
    inputs = _leaves(f, g, fa, ga)
    for y in (0, 4):
        trace = CASES[case][1](*inputs, torch.full((len(g),), y))
        assert trace.dtype == dtype and trace.isfinite().all()
        for gradient in torch.autograd.grad(trace.sum(), inputs, allow_unused=True):
            assert gradient is None or gradient.isfinite().all()


@pytest.mark.parametrize("case", CASES)
def test_half_precision_is_computed_in_float32(case):
    p = problem(5)
    half = [tensor.bfloat16() for tensor in p.arguments()]
    trace = CASES[case][1](*half, p.y)
    assert trace.dtype == torch.float32
    torch.testing.assert_close(trace, CASES[case][1](*[tensor.float() for tensor in half], p.y))


@pytest.mark.parametrize("case", CASES)
def test_autocast_does_not_lower_the_precision(case):
    p = problem(5)
    inputs = [tensor.float() for tensor in p.arguments()]
    with torch.autocast("cpu", torch.bfloat16):
        lowered = CASES[case][1](*inputs, p.y)
    assert torch.equal(lowered, CASES[case][1](*inputs, p.y))


def test_float32_margin_keeps_its_digits_where_the_prediction_is_sure():
    ga = torch.tensor([[20.0, 0.0, -1.0, 1.0]], dtype=torch.float64)
    fa, y = torch.ones(1, 2, dtype=torch.float64), torch.tensor([1])
    torch.testing.assert_close(
        trh.margin(fa.float(), ga.float(), y).double(), trh.margin(fa, ga, y), rtol=1e-5, atol=0
    )


def test_mart_names_a_wrong_input():
    p = problem(3)
    with pytest.raises(trh.BceInputError, match="'both'"):
        trh.mart(*p.arguments(), p.y, 1.0, bce_input="both")


def _leaves(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(tensor.detach().clone().requires_grad_(True) for tensor in tensors)
