"""Verdicts, witnesses, counts, and that nothing depends on who shares the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from runs import run_protocol
from torch import nn

from robustzoo.attacks.answers import NonFiniteLogits
from robustzoo.attacks.geometry import in_ball
from robustzoo.attacks.protocols import SINGLE_ATTACKS, protocol
from robustzoo.registry.threat_model import ThreatModel

LINF = ThreatModel.parse("linf:0.04")
MEMBERS = (*SINGLE_ATTACKS, "pgd-7")


def run(model, data, ids, p, threat_model, classes=10, *, lanes=6, seed=0):
    return run_protocol(model, data, ids, p, threat_model, classes, seed=seed, micro_batch_size=lanes)


def all_same(some, others) -> bool:
    """Equal in every field, witnesses bit by bit."""

    def comparable(r):
        return replace(r, witness=None if r.witness is None else r.witness.numpy().tobytes())

    return [comparable(r) for r in some] == [comparable(r) for r in others]


# Every attack in one ball, and in each other ball the protocol of four; the rest is slow.
IN_EVERY_BALL = [
    pytest.param(
        name, threat_model, marks=() if "linf" in threat_model or name == "aa-standard" else pytest.mark.slow
    )
    for name in (*MEMBERS, "aa-standard")
    for threat_model in ("linf:0.04", "l2:0.25", "l1:1.5")
]


@pytest.mark.parametrize(("name", "threat_model"), IN_EVERY_BALL)
def test_results_do_not_depend_on_order_grouping_or_number(name, threat_model, tiny_vit, toys):
    threat_model = ThreatModel.parse(threat_model)
    n = 23 if name == "square" else 11  # of which both kinds are among them
    data = toys.labelled(tiny_vit, toys.random_images(n, (1, 8, 8)))
    p = toys.short(name, threat_model, 10, iterations=6, queries=30)
    whole = run(tiny_vit, data, range(n), p, threat_model)
    assert {r.robust for r in whole} == {True, False}, "the comparison needs both kinds of sample"
    order = torch.randperm(n, generator=torch.Generator().manual_seed(2)).tolist()
    parts = [run(tiny_vit, data, order[a:b], p, threat_model) for a, b in ((0, 1), (1, n))]
    rejoined = sorted((r for part in parts for r in part), key=lambda r: r.id)
    assert all_same(whole, rejoined)


@pytest.mark.parametrize("name", MEMBERS)
def test_witnesses_fool_the_model_inside_ball_and_box(name, threat_model, tiny_vit, toys):
    n = 20 if name == "square" else 8
    data = toys.labelled(tiny_vit, toys.random_images(n, (1, 8, 8)))
    results = run(tiny_vit, data, range(n), toys.short(name, threat_model, 10), threat_model)
    broken = [r for r in results if not r.robust]
    assert broken
    for r in broken:
        point = r.witness.unsqueeze(0)
        assert r.witness.dtype == torch.float32 and not r.witness.requires_grad
        assert in_ball(point, data[r.id][0].unsqueeze(0), threat_model.norm, threat_model.eps).all()
        with torch.no_grad():
            logits = tiny_vit(point)[0]
        others = torch.cat((logits[: r.label], logits[r.label + 1 :]))
        assert float(logits[r.label] - others.max()) == pytest.approx(r.margin, abs=1e-4)
        assert r.margin < 0 and r.broken_by.attack == name
        assert (r.broken_by.target is not None) == name.endswith(("-t", "-malt"))
        assert r.broken_by.target != r.label


@pytest.mark.parametrize(("classes", "shape"), [(2, (1, 8, 8)), (3, (3, 6, 10)), (8, (2, 9, 4))], ids=str)
def test_any_number_of_classes_and_any_shape(classes, shape, threat_model, toys):
    model = toys.Linear(classes, shape)
    data = toys.labelled(model, toys.random_images(3, shape))
    for name in (*MEMBERS, "aa-plus", "aa-rand"):
        p = toys.short(name, threat_model, classes, iterations=3, queries=20)
        results = run(model, data, range(3), p, threat_model, classes, lanes=2)
        assert [r.id for r in results] == list(range(3))
        assert all(r.robust == (r.witness is None) == (r.broken_by is None) for r in results)


def test_a_thousand_classes_and_a_batch_of_one(toys):
    model = toys.Linear(1000, (3, 4, 6))
    data = toys.labelled(model, toys.random_images(1, (3, 4, 6)))
    for name in MEMBERS:
        p = toys.short(name, LINF, 1000, iterations=2, queries=5)
        (r,) = run(model, data, [0], p, LINF, 1000, lanes=1)
        assert r.id == 0 and (r.robust or r.broken_by.attack == name)


def test_verdicts_do_not_depend_on_the_shape_of_the_batch(tiny_vit, toys):
    data = toys.labelled(tiny_vit, toys.random_images(7, (1, 8, 8)))
    p = toys.short("apgd-ce+t", LINF, 10, iterations=6)
    one, *others = [
        [r.robust for r in run(tiny_vit, data, range(7), p, LINF, lanes=lanes)] for lanes in (4, 1, 7, 64)
    ]
    assert all(other == one for other in others)


@pytest.mark.parametrize("threat_model", ["linf:1", "l2:8", "l1:64"])
@pytest.mark.parametrize("name", ["aa-standard", "aa-plus", "aa-rand"])
def test_all_broken_by_the_first_attack(name, threat_model, tiny_vit, toys):
    data = toys.labelled(tiny_vit, toys.random_images(9, (1, 8, 8)))
    threat_model = ThreatModel.parse(threat_model)
    results = run(tiny_vit, data, range(9), toys.short(name, threat_model, 10), threat_model)
    assert all(r.broken_by.attack == "apgd-ce" for r in results)


@pytest.mark.parametrize("name", ["aa-standard", "aa-plus", *MEMBERS])
def test_none_correct(name, threat_model, tiny_vit, toys):
    data = [(x, (y + 1) % 10) for x, y in toys.labelled(tiny_vit, toys.random_images(9, (1, 8, 8)))]
    results = run(tiny_vit, data, range(9), protocol(name, threat_model, 10), threat_model)
    assert not any(r.robust for r in results)
    assert all(r.broken_by is None and r.witness is None for r in results)
    assert all((r.forwards, r.backwards) == (1, 0) for r in results)


def test_no_samples(tiny_vit, toys):
    data = toys.labelled(tiny_vit, toys.random_images(1, (1, 8, 8)))
    assert run(tiny_vit, data, [], protocol("aa-standard", LINF, 10), LINF) == []


class Constant(nn.Module):
    """The same logits everywhere: attached to the input with zero gradients, or not attached at all."""

    def __init__(self, attached: bool) -> None:
        super().__init__()
        self.attached = attached

    def forward(self, x):
        logits = torch.zeros(len(x), 5, device=x.device)
        return logits + 0.0 * x.flatten(1).sum(1, keepdim=True) if self.attached else logits


@pytest.mark.parametrize("attached", [True, False])
@pytest.mark.parametrize("name", MEMBERS)
def test_a_constant_model_is_robust_and_gives_no_nan(name, attached, threat_model, toys):
    data = [(x, 0) for x in toys.random_images(4, (1, 8, 8))]
    results = run(Constant(attached), data, range(4), toys.short(name, threat_model, 5), threat_model, 5)
    assert all(r.robust for r in results)


class SometimesNaN(nn.Module):
    """NaN where the first pixel is above a limit."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x):
        logits = torch.stack((x.flatten(1).sum(1), x.flatten(1).mean(1)), 1)
        return torch.where(x[:, 0, 0, :1] > self.limit, torch.nan, logits)


def test_nan_logits_name_the_samples(toys):
    data = [(x, 0) for x in 0.5 * toys.random_images(8, (1, 4, 4))]
    data[2][0][0, 0, 0] = data[5][0][0, 0, 0] = 0.9
    p = toys.short("apgd-ce", LINF, 2)
    with pytest.raises(NonFiniteLogits, match="sample 2, 5;"):
        run(SometimesNaN(0.8), data, range(8), p, LINF, 2, lanes=8)
    with pytest.raises(NonFiniteLogits, match="sample 7"):
        data[7][0][0, 0, 0] = 0.79
        run(SometimesNaN(0.8), data, [7], replace(p, attacks=(_outward(p),)), LINF, 2)


def _outward(p):
    return replace(p.attacks[0], name="square", algorithm="square", constants={"p_init": 0.8}, iterations=50)


def test_the_seed_decides(tiny_vit, toys):
    data = toys.labelled(tiny_vit, toys.random_images(23, (1, 8, 8)))
    p = toys.short("apgd-ce", LINF, 10)
    runs = [run(tiny_vit, data, range(23), p, LINF, lanes=23, seed=seed) for seed in (0, 0, 1)]
    assert all_same(runs[0], runs[1])
    assert not all_same(runs[0], runs[2])


def test_logits_of_another_number_of_classes(tiny_vit, toys):
    data = toys.labelled(tiny_vit, toys.random_images(2, (1, 8, 8)))
    data = [(x, 0) for x, _ in data]
    with pytest.raises(ValueError, match=r"output has shape \(2, 10\); expected \(2, 7\)"):
        run(tiny_vit, data, range(2), toys.short("apgd-ce", LINF, 7), LINF, 7, lanes=2)


def test_a_label_that_is_no_class(tiny_vit, toys):
    data = [(x, 10) for x in toys.random_images(2, (1, 8, 8))]
    with pytest.raises(ValueError, match="sample 0 has label 10"):
        run(tiny_vit, data, range(2), toys.short("apgd-ce", LINF, 10), LINF)
