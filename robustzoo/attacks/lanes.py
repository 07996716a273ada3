"""The scheduler: a static batch of lanes, each carrying one sample through one attack.

The network always sees a batch of the same shape. A lane whose attempt ends goes on to its sample's next
attempt or takes the next waiting sample; a lane without one keeps its last image as padding. All state is per
lane, so a sample's trajectory depends on the weights, the sample, its key and the shape of the batch, and on
nothing
else: not on which samples share the batch, their order, or how many there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from robustzoo.attacks.answers import check_finite, gradient, predict
from robustzoo.attacks.losses import attack_loss, margin
from robustzoo.attacks.members import Member
from robustzoo.attacks.projections import in_ball, per_sample, safe_radius


@dataclass(frozen=True)
class Sample:
    """One correctly classified image waiting for attack: its id, label and the target classes in order."""

    id: int
    label: int
    targets: tuple[int, ...]
    image: Callable[[], Tensor]


@dataclass(frozen=True)
class Outcome:
    """What one member did to one sample. `target` is None for untargeted attacks, `point` (C, H, W) on the
    CPU. `blind`: it asked for gradients, and every one was zero at every pixel."""

    id: int
    broken: bool
    target: int | None
    restart: int
    iteration: int
    point: Tensor | None
    margin: float | None
    forwards: int
    backwards: int
    blind: bool = False


class Lanes:
    """The batch: images `x: (L, C, H, W)`, labels, ids, attempts and targets `(L,)`, and which lanes are in
    use."""

    def __init__(self, lanes: int, image_shape: tuple[int, ...], device: torch.device) -> None:
        self.x = torch.zeros(lanes, *image_shape, device=device)
        self.y, self.ids, self.attempt, self.target = torch.zeros(4, lanes, dtype=torch.int64, device=device)
        self.active = torch.zeros(lanes, dtype=torch.bool, device=device)
        self.forwards, self.backwards = torch.zeros(2, lanes, dtype=torch.int64, device=device)
        self.slope = torch.zeros(lanes, dtype=torch.bool, device=device)  # some gradient was not zero
        self.samples: list[Sample | None] = [None] * lanes

    def load(self, lane: int, sample: Sample) -> None:
        """Put a fresh sample into a lane, at its first attempt."""
        self.samples[lane] = sample
        self.x[lane] = sample.image().to(self.x)
        self.y[lane], self.ids[lane], self.active[lane] = sample.label, sample.id, True
        self.forwards[lane] = self.backwards[lane] = 0
        self.slope[lane] = False

    def free(self, lane: int) -> None:
        """Take the sample out; the image stays as padding."""
        self.samples[lane] = None
        self.active[lane] = False

    def begin(self, lane: int, member: Member, attempt: int) -> None:
        """Set attempt number and target class of the attempt that starts in a lane."""
        self.attempt[lane] = attempt
        if member.targets:
            self.target[lane] = self.samples[lane].targets[attempt // member.restarts]


class Search(ABC):
    """One attack running on all lanes at once. All tensors lead with the lane; nothing mixes lanes.

    `points: (L, C, H, W) in [0, 1]` is where the network is asked next. `differentiates` says whether that
    evaluation is a differentiable one, `looks` whether its points may break their samples. `iteration: (L,)`
    is the index of that point within its attempt.
    """

    points: Tensor
    iteration: Tensor
    differentiates = True
    looks = True

    def __init__(self, member: Member, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        self.member, self.lanes, self.norm, self.seed = member, lanes, norm, seed
        self.budget = eps
        self.eps = safe_radius(norm, eps)
        self.points = lanes.x.clone()
        self.iteration = torch.zeros_like(lanes.y)

    @abstractmethod
    def begin(self, starting: Tensor) -> None:
        """Start an attempt in the lanes of `starting: (L,) bool`; the others keep their state."""

    @abstractmethod
    def advance(self, logits: Tensor, loss: Tensor | None, grad: Tensor | None) -> Tensor:
        """Digest the answer for `points` and move them. Returns which attempts are exhausted, (L,) bool.

        `loss` and `grad` are None unless `differentiates`; `grad` is also None where no lane wanted it.
        """

    def wants_gradient(self) -> Tensor:
        """Which lanes will use the gradient of the coming evaluation, (L,) bool."""
        return self.iteration < self.member.iterations

    def loss(self, logits: Tensor) -> Tensor:
        """The member's loss per lane, (L,)."""
        return attack_loss(self.member.loss, logits, self.lanes.y, self.lanes.target)

    def gradient(self, logits: Tensor, loss: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """What the search climbs, (L,), and its gradient at `points: (L, C, H, W)`, in `member.gradients`
        backwards."""
        return loss, gradient(loss, points)

    def draw(
        self, starting: Tensor, noise: Callable[..., Tensor], shape: tuple[int, ...], part: str = ""
    ) -> Tensor:
        """Keyed noise (L, *shape) for the starting lanes, zeros elsewhere; `noise` is from `keyed_noise`."""
        at = starting.nonzero().squeeze(1)
        drawn = torch.zeros(len(starting), *shape, device=starting.device)
        drawn[at] = noise(
            self.seed, self.lanes.ids[at], self.member.attack + part, shape, index=self.lanes.attempt[at]
        )
        return drawn


def select(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Per lane: `new` where `mask: (L,)` holds, else `old`; both (L, ...)."""
    return torch.where(per_sample(mask, new), new, old)


@torch.no_grad()
def run_member(
    model: Callable[[Tensor], Tensor],
    search: Search,
    waiting: Iterable[Sample],
    judge: Callable[[Tensor], Tensor] | None = None,
) -> Iterator[Outcome]:
    """Run one attack on all waiting samples; yields an Outcome as each sample leaves its lane.

    Every evaluated point is looked at: it breaks its sample if it fools the network, lies in ball and box,
    and fools it again in a second evaluation without gradients.

    Args:
        judge: what the second evaluation asks, where `model` searches in reduced precision: the same network
            in strict float32. A success that it does not confirm is none, and the search goes on.

    Raises:
        NonFiniteLogits: NaN or infinite logits in a lane in use.
    """
    lanes, member, queue = search.lanes, search.member, iter(waiting)
    starting = torch.zeros_like(lanes.active)
    for lane in range(len(lanes.samples)):
        _refill(lanes, lane, member, queue, starting)
    search.begin(starting)
    while lanes.active.any():
        points = search.points.detach()
        logits, loss, grad, fooled, margins = _ask(model, judge or model, search, points)
        iterations = search.iteration
        exhausted = search.advance(logits, loss, grad)
        over = ((fooled | exhausted) & lanes.active).nonzero().squeeze(1).tolist()
        if not over:
            continue
        starting = torch.zeros_like(lanes.active)
        for lane in over:
            attempt, broken = int(lanes.attempt[lane]), bool(fooled[lane])
            if not broken and attempt + 1 < member.attempts:
                lanes.begin(lane, member, attempt + 1)
                starting[lane] = True
                continue
            yield Outcome(
                id=lanes.samples[lane].id,
                broken=broken,
                target=int(lanes.target[lane]) if member.targets else None,
                restart=attempt % member.restarts,
                iteration=int(iterations[lane]),
                point=points[lane].cpu().clone() if broken else None,
                margin=float(margins[lane]) if broken else None,
                forwards=int(lanes.forwards[lane]),
                backwards=int(lanes.backwards[lane]),
                blind=bool((lanes.backwards[lane] > 0) & ~lanes.slope[lane]),
            )
            lanes.free(lane)
            _refill(lanes, lane, member, queue, starting)
        if starting.any():
            search.begin(starting)


def _ask(
    model: Callable[[Tensor], Tensor], judge: Callable[[Tensor], Tensor], search: Search, points: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, Tensor]:
    """The network's answer at `points`: logits, loss and gradient where asked for, and what `_look` gives."""
    lanes, draws = search.lanes, search.member.draws
    if not search.differentiates:
        logits = predict(model, points, draws)
        lanes.forwards += lanes.active * draws
        return logits, None, None, *_look(judge, search, points, logits)
    wants = search.wants_gradient() & lanes.active
    if draws > 1:
        logits, loss, grad = _expected(model, search, points, bool(wants.any()))
        looked = _look(judge, search, points, logits)
    else:
        points = points.requires_grad_()
        with torch.enable_grad():
            logits = model(points)
            loss = search.loss(logits)
        looked, grad = _look(judge, search, points.detach(), logits.detach()), None
        wants &= ~looked[0]
        if wants.any():
            loss, grad = search.gradient(logits, loss, points)
        points.requires_grad_(False)
        logits, loss = logits.detach(), loss.detach()
    lanes.forwards += lanes.active * draws
    lanes.backwards += wants * (draws * search.member.gradients)
    if grad is not None:
        lanes.slope |= wants & (grad != 0).flatten(1).any(1)
    return logits, loss, grad, *looked


def _expected(
    model: Callable[[Tensor], Tensor], search: Search, points: Tensor, wanted: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits, loss and (where wanted) gradient, each the mean over the draws of a random model."""
    draws = search.member.draws
    sums: list[Tensor] = []
    for _ in range(draws):
        here = points.clone().requires_grad_()
        with torch.enable_grad():
            logits = model(here)
            loss = search.loss(logits)
        drawn = [
            logits.detach(),
            loss.detach(),
            *([search.gradient(logits, loss, here)[1]] if wanted else []),
        ]
        sums = [total + part for total, part in zip(sums, drawn, strict=True)] if sums else drawn
    means = [total / draws for total in sums]
    return means[0], means[1], means[2] if wanted else None


def _refill(lanes: Lanes, lane: int, member: Member, queue: Iterator[Sample], starting: Tensor) -> None:
    sample = next(queue, None)
    if sample is not None:
        lanes.load(lane, sample)
        lanes.begin(lane, member, 0)
        starting[lane] = True


def _look(
    judge: Callable[[Tensor], Tensor], search: Search, points: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor]:
    """Which lanes in use are broken at their point, (L,) bool, and the margins (L,) of the second
    evaluation."""
    lanes = search.lanes
    check_finite(logits, lanes.ids, lanes.active)
    margins = torch.zeros_like(logits[:, 0])
    if not search.looks:
        return torch.zeros_like(lanes.active), margins
    fooled = (logits.argmax(1) != lanes.y) & lanes.active
    if fooled.any():
        fooled &= in_ball(points, lanes.x, search.norm, search.budget)
    if fooled.any():
        again = predict(judge, points, search.member.draws)
        lanes.forwards += fooled * search.member.draws
        margins = margin(again, lanes.y)
        fooled &= again.argmax(1) != lanes.y
    return fooled, margins
