"""What a sample that is never broken costs, counted by hooks on the network."""

from __future__ import annotations

import pytest
from runs import run_protocol
from torch import nn

from robustzoo.attacks.protocols import SINGLE_ATTACKS, protocol
from robustzoo.registry.threat_model import ThreatModel

BUDGETS = ("linf:0.00001", "l2:0.00001", "l1:0.00001")


class Counted(nn.Module):
    """A model that counts the rows it sees forwards, and those whose gradient is asked for."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.forwards, self.backwards = model, 0, 0

    def forward(self, x):
        self.forwards += len(x)
        logits = self.model(x)
        if logits.requires_grad:
            logits.register_hook(self._backward)
        return logits

    def _backward(self, grad):
        self.backwards += len(grad)


def cost(toys, p, threat_model, shape, classes=10):
    """(robust, counted by the network, stated in the result) of one image of a linear model."""
    model = Counted(toys.Linear(classes, shape))
    data = toys.labelled(model, toys.random_images(1, shape, 0.4, 0.6))
    model.forwards = 0
    (r,) = run_protocol(model, data, [0], p, threat_model, classes, micro_batch_size=1)
    return r.robust, (model.forwards, model.backwards), (r.forwards, r.backwards)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("name", [*SINGLE_ATTACKS, "pgd-7", "aa-standard", "aa-plus"])
def test_passes_are_those_that_attacks_state(name, budget, toys):
    """Exactly: one for the clean image and `Attack.passes`; Square may know answers and ask for fewer."""
    threat_model = ThreatModel.parse(budget)
    p = toys.short(name, threat_model, 5, iterations=10, queries=20)
    robust, counted, stated = cost(toys, p, threat_model, (3, 5, 5), 5)
    forwards, backwards = (sum(part) for part in zip(*(m.passes for m in p.attacks), strict=True))
    assert robust and counted == stated and stated[1] == backwards
    if any(m.algorithm == "square" for m in p.attacks):
        assert 1 + forwards - 20 < stated[0] <= 1 + forwards
    else:
        assert stated[0] == 1 + forwards


@pytest.mark.parametrize(
    "budget, forwards, backwards",
    [
        # Clean 1, APGD 101 + 9 x 101 points, FAB-T 9 x 200, Square 5,001; a gradient at each but the last.
        ("linf:8/255", 1 + 101 + 909 + 1800 + 5001, 100 + 900 + 900),
        ("l2:0.5", 1 + 101 + 909 + 1800 + 5001, 100 + 900 + 900),
        # APGD in three phases: 5 restarts and 5 targets of 103 points.
        ("l1:12", 1 + 515 + 515 + 1800 + 5001, 500 + 500 + 900),
    ],
)
def test_formula_of_aa_standard(budget, forwards, backwards):
    """Below the 1,905 backwards of the reference; its 7,856 forwards less the repeated clean ones."""
    attacks = protocol("aa-standard", ThreatModel.parse(budget), 10).attacks
    assert tuple(sum(part) for part in zip((1, 0), *(m.passes for m in attacks), strict=True)) == (
        forwards,
        backwards,
    )
    assert backwards <= 1905


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS[:2])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32)], ids=str)
def test_aa_standard_at_full_size(budget, shape, toys):
    """At most 1,905 backwards; at most 7,000 forwards on small grey images, where Square knows the most."""
    threat_model = ThreatModel.parse(budget)
    robust, counted, stated = cost(toys, protocol("aa-standard", threat_model, 10), threat_model, shape)
    assert robust and counted == stated and stated[1] <= 1905
    assert stated[0] <= (7000 if shape[0] == 1 else 1 + 101 + 909 + 1800 + 5001)
