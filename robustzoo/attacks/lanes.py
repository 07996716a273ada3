"""The scheduler: a static batch of lanes, each carrying one attempt of an attack on one sample.

The network always sees a batch of the same shape. A lane whose attempt ends goes on to its sample's next
attempt or takes the next waiting sample; where none waits, it runs an attempt of another lane's sample ahead
of its turn, and keeps its last image as padding where there is none of these either. All state is per lane,
so a sample's trajectory depends on the weights, the sample, its key and the shape of the batch, and on no
more: not on which samples share the batch, their order, or how many there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from robustzoo.attacks.answers import NonFiniteLogits, gradient, predict
from robustzoo.attacks.attack_losses import attack_loss
from robustzoo.attacks.attempts import Attempt, Attempts, Outcome, Sample
from robustzoo.attacks.geometry import in_ball, per_sample, safe_radius
from robustzoo.attacks.protocols import Attack


class Lanes:
    """The batch: images `x: (L, C, H, W)`, labels, ids, attempts and targets `(L,)`, and which lanes are in
    use; passes and gradients of the attempt that each lane runs."""

    def __init__(self, lanes: int, image_shape: tuple[int, ...], device: torch.device) -> None:
        self.x = torch.zeros(lanes, *image_shape, device=device)
        self.y, self.ids, self.attempt, self.target = torch.zeros(4, lanes, dtype=torch.int64, device=device)
        self.active = torch.zeros(lanes, dtype=torch.bool, device=device)
        self.forwards, self.backwards = torch.zeros(2, lanes, dtype=torch.int64, device=device)
        # Some gradient was not zero; all logits were finite.
        self.slope, self.finite = torch.zeros(2, lanes, dtype=torch.bool, device=device)
        self.works: list[tuple[Attempts, int] | None] = [None] * lanes

    def __len__(self) -> int:
        return len(self.works)

    def sample(self, lane: int) -> Sample:
        """The sample that a lane in use carries."""
        return self._work(lane)[0].sample

    def _work(self, lane: int) -> tuple[Attempts, int]:
        work = self.works[lane]
        assert work is not None, f"lane {lane} is not in use"
        return work

    def begin(self, lane: int, attack: Attack, attempts: Attempts, number: int) -> None:
        """Put an attempt, of the sample that is there or of another one, into a lane."""
        sample, before = attempts.sample, self.works[lane]
        if before is None or before[0] is not attempts:
            self.x[lane] = sample.image().to(self.x)
            self.y[lane], self.ids[lane], self.active[lane] = sample.label, sample.id, True
        self.works[lane] = attempts, number
        self.forwards[lane] = self.backwards[lane] = 0
        self.slope[lane], self.finite[lane] = False, True
        self.attempt[lane] = number
        if attack.targets:
            self.target[lane] = sample.targets[number // attack.restarts]

    def free(self, lane: int) -> None:
        """Take the sample out; the image stays as padding."""
        self.works[lane] = None
        self.active[lane] = False

    def end(
        self, lanes: list[int], attack: Attack, iterations: Tensor, points: Tensor, fooled: Tensor
    ) -> list[Attempts]:
        """Enter how the attempts in `lanes` ended, all read from the device at once; returns whose they were.

        iterations: (L,). points: (L, C, H, W), that of a lane of `fooled: (L,) bool` broke its sample.
        """
        counts = iterations, self.target, self.forwards, self.backwards, self.slope, self.finite, fooled
        rows = torch.stack([count.long() for count in counts], 1).tolist()
        for lane in lanes:
            attempts, number = self._work(lane)
            iteration, target, forwards, backwards, slope, finite, broken = rows[lane]
            point = points[lane].cpu().clone() if broken else None
            attempts.end(
                number,
                Attempt(
                    target=target if attack.targets else None,
                    iteration=iteration,
                    point=point,
                    forwards=forwards,
                    backwards=backwards,
                    slope=bool(slope),
                    finite=bool(finite),
                ),
            )
        return [self._work(lane)[0] for lane in lanes]

    def note_not_finite(self, bad: Tensor) -> None:
        """The lanes of `bad: (L,) bool` have NaN or infinite logits; an attempt ahead of its turn keeps it in
        mind.

        Raises:
            NonFiniteLogits: it is the turn of one of these attempts.
        """
        self.finite &= ~bad
        lanes = bad.nonzero().squeeze(1).tolist()
        turn = [lane for lane in lanes if self._work(lane)[0].leading(self._work(lane)[1])]
        if turn:
            raise NonFiniteLogits(sorted({self.sample(lane).id for lane in turn}))


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
    independent = True  # no attempt uses what an earlier one on the same sample found

    def __init__(self, attack: Attack, lanes: Lanes, norm: str, eps: float, seed: int) -> None:
        self.attack, self.lanes, self.norm, self.seed = attack, lanes, norm, seed
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

    def gather(self, logits: Tensor) -> Tensor:
        """Logits (L, K) with those that lanes out of use answered for others entered at these, as are points,
        iterations and forwards; for searches that do not differentiate."""
        return logits

    def wants_gradient(self) -> Tensor:
        """Which lanes will use the gradient of the coming evaluation, (L,) bool."""
        return self.iteration < self.attack.iterations

    def loss(self, logits: Tensor) -> Tensor:
        """The attack's loss per lane, (L,)."""
        if self.attack.loss == "cross-entropy" and self.attack.draws > 1:
            # A draw whose loss vanishes adds nothing to a mean; what stands for it elsewhere would.
            return F.cross_entropy(logits, self.lanes.y, reduction="none")
        return attack_loss(self.attack.loss, logits, self.lanes.y, self.lanes.target)

    def gradient(self, logits: Tensor, loss: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
        """What the search climbs, (L,), and its gradient at `points: (L, C, H, W)`, in `attack.gradients`
        backwards."""
        return loss, gradient(loss, points)

    def draw(
        self, starting: Tensor, noise: Callable[..., Tensor], shape: tuple[int, ...], part: str = ""
    ) -> Tensor:
        """Keyed noise (L, *shape) for the starting lanes, zeros elsewhere; `noise` is from `keyed_noise`."""
        at = starting.nonzero().squeeze(1)
        drawn = torch.zeros(len(starting), *shape, device=starting.device)
        drawn[at] = noise(
            self.seed, self.lanes.ids[at], self.attack.name + part, shape, index=self.lanes.attempt[at]
        )
        return drawn


def select(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Per lane: `new` where `mask: (L,)` holds, else `old`; both (L, ...)."""
    return torch.where(per_sample(mask, new), new, old)


@torch.no_grad()
def run_attack(
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
    lanes, attack, queue = search.lanes, search.attack, _Queue(search, waiting)
    judge = model if judge is None else judge  # not `or`: a module may have a length, and it may be 0
    starting = queue.refill(range(len(lanes)))
    while any(work is not None for work in lanes.works):
        if starting is not None:
            search.begin(starting)
            starting = None
        logits, loss, grad, fooled = _ask(model, judge, search, search.points.detach())
        points, iterations = search.points, search.iteration
        exhausted = search.advance(logits, loss, grad)
        over = [i for i, ends in enumerate(((fooled | exhausted) & lanes.active).tolist()) if ends]
        if not over:
            continue
        yield from queue.settle(lanes.end(over, attack, iterations, points, fooled))
        starting = queue.refill(i for i, work in enumerate(lanes.works) if i in over or work is None)


class _Queue:
    """What lanes do next, and the samples that are in hand."""

    def __init__(self, search: Search, waiting: Iterable[Sample]) -> None:
        self._lanes, self._attack, self._ahead = search.lanes, search.attack, search.independent
        self._waiting = iter(waiting)
        self._in_hand: dict[int, Attempts] = {}

    def settle(self, ended: Iterable[Attempts]) -> Iterator[Outcome]:
        """The outcomes of samples that are done with; frees the lanes whose attempt matters no more."""
        for attempts in dict.fromkeys(ended):
            outcome = attempts.outcome()
            if outcome is not None:
                del self._in_hand[attempts.sample.id]
                yield outcome
        for lane, work in enumerate(self._lanes.works):
            if work is not None and (work[0].sample.id not in self._in_hand or not work[0].needs(work[1])):
                self._lanes.free(lane)

    def refill(self, lanes: Iterable[int]) -> Tensor | None:
        """Begin an attempt in each lane that there is one for, and free the others. Returns which begin, (L,)
        bool, None where none does."""
        begun = {lane for lane in lanes if self._begin(lane)}
        if not begun:
            return None
        return torch.tensor(
            [lane in begun for lane in range(len(self._lanes))], device=self._lanes.active.device
        )

    def _begin(self, lane: int) -> bool:
        """Begin an attempt in a lane: of its own sample, of the next one waiting, or ahead of another lane's
        turn. Returns whether there was any; else the lane is freed."""
        work = self._lanes.works[lane]
        for attempts in self._candidates(None if work is None else work[0]):
            number = attempts.take()
            if number is not None:
                self._lanes.begin(lane, self._attack, attempts, number)
                return True
        self._lanes.free(lane)
        return False

    def _candidates(self, own: Attempts | None) -> Iterator[Attempts]:
        if own is not None:
            yield own
        sample = next(self._waiting, None)
        if sample is not None:
            yield self._in_hand.setdefault(sample.id, Attempts(sample, self._attack))
        elif self._ahead:
            yield from self._in_hand.values()


def _ask(
    model: Callable[[Tensor], Tensor], judge: Callable[[Tensor], Tensor], search: Search, points: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    """The network's answer at `points`: logits, loss and gradient where asked for, and what `_look` gives."""
    lanes, draws = search.lanes, search.attack.draws
    if not search.differentiates:
        logits = search.gather(predict(model, points, draws))
        lanes.forwards += lanes.active * draws
        return logits, None, None, _look(judge, search, points, logits)[0]
    wants = search.wants_gradient() & lanes.active
    if draws > 1:
        logits, loss, grad = _expected(model, search, points, bool(wants.any()))
        fooled, _ = _look(judge, search, points, logits)
    else:
        points = points.requires_grad_()
        with torch.enable_grad():
            logits = model(points)
            loss = search.loss(logits)
        fooled, wanted = _look(judge, search, points.detach(), logits.detach(), wants)
        wants, grad = wants & ~fooled, None
        if wanted:
            loss, grad = search.gradient(logits, loss, points)
        points.requires_grad_(False)
        logits, loss = logits.detach(), loss.detach()
    lanes.forwards += lanes.active * draws
    lanes.backwards += wants * (draws * search.attack.gradients)
    if grad is not None:
        lanes.slope |= wants & (grad != 0).flatten(1).any(1)
    return logits, loss, grad, fooled


def _expected(
    model: Callable[[Tensor], Tensor], search: Search, points: Tensor, wanted: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Logits, loss and (where wanted) gradient, each the mean over the draws of a random model."""
    draws = search.attack.draws
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


def _look(
    judge: Callable[[Tensor], Tensor],
    search: Search,
    points: Tensor,
    logits: Tensor,
    wants: Tensor | None = None,
) -> tuple[Tensor, bool]:
    """Which lanes in use are broken at their point, (L,) bool; and whether any other is in `wants`, (L,)
    bool.

    The device is waited for once, more often only where something looks broken.
    """
    lanes = search.lanes
    finite, fooled = logits.isfinite().all(1), torch.zeros_like(lanes.active)
    bad = ~finite & lanes.active
    if search.looks:
        fooled = (logits.argmax(1) != lanes.y) & lanes.active & finite
    wants = fooled if wants is None else wants
    any_bad, any_fooled, wanted = torch.stack((bad, fooled, wants & ~fooled)).any(1).tolist()
    if any_bad:
        lanes.note_not_finite(bad)
    if any_fooled:
        fooled &= in_ball(points, lanes.x, search.norm, search.budget)
        if fooled.any():
            lanes.forwards += fooled * search.attack.draws
            fooled &= predict(judge, points, search.attack.draws).argmax(1) != lanes.y
        wanted = bool((wants & ~fooled).any())
    return fooled, wanted
