"""The attempts of one attack on one sample: which are to be run, and what they have found together.

Attempts are independent of one another, so that lanes without a sample of their own can run later ones ahead
of their turn. What the sample is told to have needed is what running them in order needs: the attempts up to
the first, in their order, that breaks it, and no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from robustzoo.attacks.answers import NonFiniteLogits
from robustzoo.attacks.protocols import Attack


@dataclass(frozen=True)
class Sample:
    """One correctly classified image waiting for attack: its id, label and the target classes in order."""

    id: int
    label: int
    targets: tuple[int, ...]
    image: Callable[[], Tensor]


@dataclass(frozen=True)
class Outcome:
    """What one attack did to one sample. `target` is None for untargeted attacks, `point` (C, H, W) on the
    CPU. `blind`: it asked for gradients, and every one was zero at every pixel."""

    id: int
    broken: bool
    target: int | None
    restart: int
    iteration: int
    point: Tensor | None
    forwards: int
    backwards: int
    blind: bool = False


@dataclass(frozen=True)
class Attempt:
    """How one attempt ended. point: where it broke the sample, on the CPU; slope: whether some gradient was
    not zero; finite: whether all logits were."""

    target: int | None
    iteration: int
    point: Tensor | None
    forwards: int
    backwards: int
    slope: bool
    finite: bool = True


class Attempts:
    """Hands out the attempts on a sample in order, and puts together what is found."""

    def __init__(self, sample: Sample, attack: Attack) -> None:
        self.sample, self._attack = sample, attack
        self._end = attack.attempts  # attempts from here on are not needed
        self._begun = 0
        self._ended: dict[int, Attempt] = {}

    def take(self) -> int | None:
        """The next attempt that nobody has begun; None where no more is needed."""
        if self._begun >= self._end:
            return None
        self._begun += 1
        return self._begun - 1

    def needs(self, number: int) -> bool:
        """Whether this attempt, begun earlier, may still matter: no attempt before it broke the sample."""
        return number < self._end

    def leading(self, number: int) -> bool:
        """Whether all attempts before this one have ended, so that running in order would be at it now."""
        return all(earlier in self._ended for earlier in range(number))

    def end(self, number: int, attempt: Attempt) -> None:
        """Enter how an attempt ended."""
        self._ended[number] = attempt
        if attempt.point is not None:
            self._end = min(self._end, number + 1)

    def outcome(self) -> Outcome | None:
        """What all needed attempts found, once they have ended.

        Raises:
            NonFiniteLogits: one of them met such logits.
        """
        if not all(number in self._ended for number in range(self._end)):
            return None
        needed = [self._ended[number] for number in range(self._end)]
        if not all(attempt.finite for attempt in needed):
            raise NonFiniteLogits([self.sample.id])
        last = needed[-1]
        backwards = sum(attempt.backwards for attempt in needed)
        return Outcome(
            id=self.sample.id,
            broken=last.point is not None,
            target=last.target,
            restart=(self._end - 1) % self._attack.restarts,
            iteration=last.iteration,
            point=last.point,
            forwards=sum(attempt.forwards for attempt in needed),
            backwards=backwards,
            blind=backwards > 0 and not any(attempt.slope for attempt in needed),
        )
