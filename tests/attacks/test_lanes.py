"""The scheduler: what counts as a success, the order of attempts, refilling, logical counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from robustzoo.attacks.answers import NonFiniteLogits
from robustzoo.attacks.lanes import Lanes, Sample, Search, run_attack
from robustzoo.attacks.protocols import protocol
from robustzoo.attacks.searches import SEARCHES
from robustzoo.registry.threat_model import ThreatModel

LINF = ThreatModel.parse("linf:0.1")


class Brightness(nn.Module):
    """Class 0 up to a mean of 0.5, class 1 above; `flip` decides otherwise where gradients are recorded."""

    def __init__(self, flip: bool = False) -> None:
        super().__init__()
        self.flip = flip
        self.rows = []

    def forward(self, x):
        self.rows.append(len(x))
        score = x.flatten(1).mean(1) - 0.5
        logits = torch.stack((-score, score, torch.full_like(score, -9)), 1)
        return logits.flip(1) if self.flip and torch.is_grad_enabled() else logits


class Climb(Search):
    """Adds `pace` to every pixel at each step; restarts and targets add a little to the first step."""

    pace = 0.02

    def begin(self, starting):
        nudge = 0.001 * self.lanes.attempt.view(-1, 1, 1, 1)
        self.points = torch.where(starting.view(-1, 1, 1, 1), self.lanes.x + nudge, self.points)
        self.iteration = self.iteration.masked_fill(starting, 0)

    def advance(self, logits, loss, grad):
        exhausted = self.iteration >= self.attack.iterations
        self.points = (self.points + self.pace).clamp(0, 1)
        self.iteration = (self.iteration + 1).clamp_max(self.attack.iterations)
        return exhausted


def climb(model, levels, lanes=2, iterations=4, restarts=1, targets=0, eps=0.1):
    """Run Climb on constant images of these brightnesses, all of label 0."""
    (attack,) = protocol("apgd-t" if targets else "apgd-ce", LINF, 3).attacks
    attack = replace(attack, iterations=iterations, restarts=restarts, targets=targets)
    state = Lanes(lanes, (1, 2, 2), torch.device("cpu"))
    waiting = [
        Sample(i, 0, (1, 2)[:targets], lambda v=v: torch.full((1, 2, 2), v)) for i, v in enumerate(levels)
    ]
    outcomes = list(run_attack(model, Climb(attack, state, "linf", eps, seed=0), waiting))
    assert not state.active.any()
    return sorted(outcomes, key=lambda o: o.id)


def test_stops_at_the_first_point_that_fools():
    (o,) = climb(Brightness(), [0.45])
    assert (o.broken, o.iteration, o.target, o.restart) == (True, 3, None, 0)
    assert o.point.mean().item() == pytest.approx(0.51)
    # Four points with a gradient wanted from all but the last, which fooled, and one more look at that.
    assert (o.forwards, o.backwards) == (5, 3)


def test_attempts_run_in_order_until_one_succeeds():
    """0.4175 + 4 steps = 0.4975: the attempt that adds 0.003 is the first to get over 0.5."""
    (o,) = climb(Brightness(), [0.4175], restarts=2, targets=2)
    assert (o.broken, o.target, o.restart, o.iteration) == (True, 2, 1, 4)
    assert (o.forwards, o.backwards) == (4 * 5 + 1, 4 * 4)


def test_a_robust_sample_uses_every_attempt():
    (o,) = climb(Brightness(), [0.2], restarts=3, targets=2)
    assert not o.broken and o.point is None
    assert (o.forwards, o.backwards) == (6 * 5, 6 * 4)


def test_points_outside_the_ball_do_not_count():
    assert not climb(Brightness(), [0.45], eps=0.05)[0].broken
    assert climb(Brightness(), [0.45], eps=0.06 + 1e-6)[0].broken


def test_points_that_do_not_fool_twice_do_not_count():
    """A network that answers otherwise while gradients are recorded fools itself, not us."""
    (o,) = climb(Brightness(flip=True), [0.2])
    assert not o.broken
    assert o.forwards == 2 * 5


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
def test_lanes_are_refilled_and_the_batch_never_changes_shape(lanes):
    model = Brightness()
    levels = [0.45, 0.2, 0.49, 0.47, 0.3, 0.41, 0.25]
    outcomes = climb(model, levels, lanes=lanes)
    assert [o.broken for o in outcomes] == [True, False, True, True, False, False, False]
    assert [o.forwards for o in outcomes] == [5, 5, 3, 4, 5, 5, 5]
    assert set(model.rows) == {lanes}


@pytest.mark.parametrize("lanes", [1, 2, 5, 6, 7, 40])
def test_attempts_ahead_of_their_turn_leave_no_trace(lanes):
    """Attempts that break at once, in the last of six, never: on as many lanes as they like."""
    levels = [0.45, 0.4155, 0.2, 0.4165, 0.4]
    one = climb(Brightness(), levels, lanes=1, restarts=3, targets=2)
    assert [(o.broken, o.target, o.restart) for o in one] == [
        (True, 1, 0),
        (True, 2, 2),
        (False, 2, 2),
        (True, 2, 1),
        (False, 2, 2),
    ]
    model = Brightness()
    many = climb(model, levels, lanes=lanes, restarts=3, targets=2)
    for a, b in zip(one, many, strict=True):
        assert (a.point is None) == (b.point is None)
        assert a.point is None or torch.equal(a.point, b.point)
        assert replace(a, point=None) == replace(b, point=None)
    if lanes == 40:  # every attempt at once: five steps, and a second look
        assert len(model.rows) <= 2 * 5


class NaNAbove(Brightness):
    """No number above a brightness."""

    def __init__(self, level):
        super().__init__()
        self.level = level

    def forward(self, x):
        logits = super().forward(x)
        return torch.where(x.flatten(1).mean(1, keepdim=True) > self.level, torch.nan, logits)


@pytest.mark.parametrize("lanes", [1, 6])
def test_what_is_no_number_counts_when_its_turn_comes(lanes):
    # 0.4995 breaks in its first attempt at 0.5195; its sixth, ahead of its turn, would see 0.5245 there.
    assert climb(NaNAbove(0.522), [0.4995], lanes=lanes, restarts=3, targets=2)[0].broken
    # 0.43 reaches 0.51 in its first attempt, and none before its turn.
    with pytest.raises(NonFiniteLogits, match="sample 0"):
        climb(NaNAbove(0.505), [0.43], lanes=lanes, restarts=3, targets=2)
    # 0.4 stays below 0.5 but in the sixth attempt nears what gives no number: the sample needs that one.
    with pytest.raises(NonFiniteLogits, match="sample 0"):
        climb(NaNAbove(0.4845), [0.4], lanes=lanes, restarts=3, targets=2)


def test_nothing_waiting():
    assert climb(Brightness(), []) == []


# What makes the host wait for a GPU. On the CPU it costs little, but is counted all the same.
_WAITS = {"item", "tolist", "nonzero", "cpu", "masked_select", "repeat_interleave"}
_WAITS |= {f"__{kind}__" for kind in ("bool", "int", "float", "index")}


class Waits(TorchFunctionMode):
    """Counts what waits for the device: reads of values, and selections whose size depends on values."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        self.count += name in _WAITS
        if name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            self.count += any(isinstance(at, torch.Tensor) and at.dtype == torch.bool for at in index)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "norm", "most"),
    [
        ("apgd-t", "linf", 2),  # something broken or not finite; an attempt over
        ("apgd-ce", "linf", 3),  # a loss of zero too
        ("pgd-30", "linf", 3),
        ("fab-t", "linf", 3.5),  # points outside the ball fool; Newton's steps are done
        ("square", "l2", 7),  # what is next in each lane, and which has none
    ],
)
def test_the_host_hardly_waits_for_the_device_in_an_iteration(name, norm, most):
    model, lanes = Brightness(), Lanes(8, (3, 16, 16), torch.device("cpu"))
    (attack,) = protocol(name, ThreatModel.parse(f"{norm}:0.1"), 3).attacks
    attack = replace(attack, iterations=min(attack.iterations, 100))
    x = torch.rand(8, 3, 16, 16, generator=torch.Generator().manual_seed(0)) / 5
    waiting = [Sample(i, 0, (1, 2)[: attack.targets], lambda i=i: x[i]) for i in range(8)]
    search = SEARCHES[attack.algorithm](attack, lanes, norm, 0.1, seed=0)
    with Waits() as waits:
        outcomes = list(run_attack(model, search, waiting))
    assert not any(outcome.broken for outcome in outcomes)
    # The ends and beginnings of attempts cost a few more.
    assert waits.count <= most * len(model.rows) + 20 * attack.attempts
