"""Every attack on linear models whose minimal perturbation is known: away from the box, and by LP at it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from runs import run_protocol
from scipy.optimize import linprog

from robustzoo.attacks.protocols import protocol
from robustzoo.registry.threat_model import ThreatModel

SHAPE = (1, 6, 6)
# FAB oversteps by 1.05. APGD for L1 shortens its steps to a tenth of epsilon at the least, and so stays away
# from the corners where optima of random weights lie; the published implementation breaks no image of these
# earlier than ours.
FAB_ENOUGH, APGD_ENOUGH = 1.051, {"linf": 1.02, "l2": 1.02, "l1": 1.2}


def breaks(model, x, y, norm, eps, attack, classes, **changes) -> bool:
    threat_model = ThreatModel.parse(f"{norm}:{eps:.9f}")
    p = protocol(attack, threat_model, classes)
    p = replace(p, attacks=tuple(replace(m, **changes) for m in p.attacks))
    (r,) = run_protocol(model, [(x, y)], [0], p, threat_model, classes, micro_batch_size=1)
    return not r.robust


def random_model(toys, classes):
    """Random weights, and the boundaries of all classes through the middle of the box."""
    model = toys.Linear(classes, SHAPE)
    model.bias.data = -0.5 * model.weight.data.sum(1)
    return model


def away_from_the_box(toys, model, norm, shape=SHAPE):
    """Of grey images the nearest to the model's boundary and the farthest that the box lets reach it:
    (image, label, minimal epsilon)."""
    x = toys.random_images(30, shape, 0.45, 0.55)
    data = toys.labelled(model, x)
    minimal = model.minimal_epsilon(x, torch.tensor([y for _, y in data]), norm)
    inside = [i for i in minimal.argsort().tolist() if minimal[i] < 0.4]
    assert len(inside) >= 4
    return [(*data[i], float(minimal[i])) for i in (inside[0], inside[-1])]


def minimum_in_the_box(model, x, y, norm) -> float:
    """The smallest perturbation that reaches another class within the box, over all classes, each an LP."""
    weight, bias = model.weight.detach().double().numpy(), model.bias.detach().double().numpy()
    t, d = x.flatten().double().numpy(), x.numel()
    identity, found = np.eye(d), []
    for k in range(len(weight)):
        if k == y:
            continue
        w, gap = weight[k] - weight[y], weight[y] @ t + bias[y] - weight[k] @ t - bias[k]
        bounds = [*zip(-t, 1 - t, strict=True)]
        if norm == "linf":
            ones = np.ones((d, 1))
            cost, a_ub = np.r_[np.zeros(d), 1.0], np.block([[identity, -ones], [-identity, -ones]])
        else:
            cost, a_ub = (
                np.r_[np.zeros(d), np.ones(d)],
                np.block([[identity, -identity], [-identity, -identity]]),
            )
        extra = len(cost) - d
        program = linprog(
            cost,
            A_ub=np.vstack([a_ub, -np.r_[w, np.zeros(extra)]]),
            b_ub=np.r_[np.zeros(2 * d), -gap],
            bounds=[*bounds, *[(0, None)] * extra],
        )
        found += [program.fun] if program.success else []
    return min(found)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("attack", ["apgd-t", "apgd-malt", "fab-t", "fab"])
def test_away_from_the_box(attack, norm, toys):
    """APGD breaks at 1.02 of the minimum (L1: 1.2), FAB at its overshoot of 1.05; neither below it."""
    model, enough = random_model(toys, 5), FAB_ENOUGH if attack.startswith("fab") else APGD_ENOUGH[norm]
    for x, y, minimal in away_from_the_box(toys, model, norm):
        assert breaks(model, x, y, norm, enough * minimal, attack, 5)
        assert not breaks(model, x, y, norm, 0.98 * minimal, attack, 5, iterations=10)


@pytest.mark.parametrize("norm", ["linf", "l1"])
@pytest.mark.parametrize("attack", ["apgd-t", "fab-t"])
def test_at_the_box(attack, norm, toys):
    """Half of the pixels are at an edge of the box; the minimum is a linear program's."""
    model = toys.Linear(4, SHAPE, seed=3)
    x = toys.random_images(12, SHAPE)
    x = torch.where(x < 0.25, 0.0, torch.where(x > 0.75, 1.0, x))
    data = toys.labelled(model, x)
    free = model.minimal_epsilon(x, torch.tensor([y for _, y in data]), norm)
    minimal = [minimum_in_the_box(model, *data[i], norm) for i in range(12)]
    met = [i for i in range(12) if minimal[i] > 1.05 * float(free[i])]
    assert len(met) >= 2, "the box has to matter"
    enough = FAB_ENOUGH if attack == "fab-t" else APGD_ENOUGH[norm]
    for i in met[:2]:
        assert breaks(model, *data[i], norm, enough * minimal[i], attack, 4)
        assert not breaks(model, *data[i], norm, 0.98 * minimal[i], attack, 4, iterations=10)


@pytest.mark.parametrize("norm", ["linf", "l2", "l1"])
@pytest.mark.parametrize("attack", ["apgd-ce", "apgd-dlr"])
def test_untargeted_losses_on_two_classes(attack, norm, toys):
    """Cross-entropy and DLR (the margin, of two classes) head for the nearest class for sure only here."""
    model = random_model(toys, 2)
    for x, y, minimal in away_from_the_box(toys, model, norm):
        assert breaks(model, x, y, norm, APGD_ENOUGH[norm] * minimal, attack, 2)
        assert not breaks(model, x, y, norm, 0.98 * minimal, attack, 2, iterations=10)


def equal_weights(name):
    """(1, 8, 8), all that are not 0 of one size."""
    if name == "all one":
        return torch.ones(1, 8, 8)
    if name == "random signs":
        return torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(0)).sign()
    block = torch.zeros(1, 8, 8)
    block[:, 3:6, 3:6] = 1.0
    return block


@pytest.mark.parametrize(
    "attack, weights",
    [
        *itertools.product(("apgd-ce", "apgd-dlr"), ("all one", "random signs", "a block")),
        ("apgd-t", "a block"),
        ("apgd-malt", "a block"),
    ],
)
def test_l1_where_the_optima_fill_a_face(attack, weights, toys):
    """With equal weights every perturbation of their signs is optimal: no corner has to be met, and APGD
    breaks at 1.02 of the minimum in L1 too.

    Of 64 equal weights the attacks with five restarts: near the boundary a start is a single pixel, and where
    that has the wrong sign, equal steps of all others do not empty it within one attempt.
    """
    model = toys.two_classes(equal_weights(weights))
    for x, y, minimal in away_from_the_box(toys, model, "l1", (1, 8, 8)):
        assert breaks(model, x, y, "l1", 1.02 * minimal, attack, 2)
        assert not breaks(model, x, y, "l1", 0.98 * minimal, attack, 2, iterations=10)
