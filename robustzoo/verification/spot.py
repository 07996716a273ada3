"""Spot verification: a first tier on all images, then full runs of survivors drawn at random until decided.

The tier's attempt is one of the protocol's own, so its survivors contain every image that the whole protocol
leaves robust. How many of them the protocol would still break decides the claim, and a random sample of them
decides it, with an error of at most 5 %, long before all have been run.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from robustzoo.attacks.protocols import Protocol
from robustzoo.cards.statistics import FailureSequence
from robustzoo.evaluation.engine import Work
from robustzoo.evaluation.prepare import Prepared
from robustzoo.evaluation.progress import Reporter, cost_line
from robustzoo.evaluation.workers import attacked

LEVEL = 0.95
_ENTROPY_BITS = 128
# Drawn at once, at least: fewer leave most lanes of a batch empty, and look more often than they save.
_FEWEST = 16


@dataclass(frozen=True)
class Bounds:
    """What a claim says about the robust images: at least `least`, and at most `most` (None: that is shown
    already)."""

    least: int
    most: int | None = None


@dataclass(frozen=True)
class Spot:
    """What a spot check found.

    Attributes:
        survivors: images that withstood the first tier; all robust ones are among them.
        drawn, failures: survivors attacked with the whole protocol, and how many of those it broke.
        low, high: bounds on the failures among all survivors, at 95 % whenever one stops; equal where known.
        entropy: hexadecimal seed of the draw, from the system; None where nothing was drawn.
        masking: what the zero gradients say that the attacks met, in words; None where there were few.
    """

    survivors: int
    drawn: int
    failures: int
    low: int
    high: int
    entropy: str | None = None
    masking: str | None = None

    @property
    def least(self) -> int:
        """Lower bound on the robust images."""
        return self.survivors - self.high

    @property
    def most(self) -> int:
        """Upper bound on the robust images."""
        return self.survivors - self.low


class FirstTier(Work):
    """The first tier of a work's protocol, as work of its own: same model, images and noise."""

    @property
    def protocol(self) -> Protocol:
        return first_tier(super().protocol)


def first_tier(protocol: Protocol) -> Protocol:
    """The cheap part of a protocol: the first attempt of its first attack (its first target, where it has
    some), which breaks most of what the protocol breaks.

    Noise is keyed by the attempt, so this is an attempt of the protocol itself: an image that it breaks, the
    protocol breaks. An attack of no protocol's, as apgd-malt, may break others, which a true claim counts as
    robust.
    """
    head = protocol.attacks[0]
    head = replace(head, targets=min(head.targets, 1), restarts=1)
    if (head,) == protocol.attacks:
        return protocol
    return Protocol(f"first tier of {protocol.name}", protocol.norm, (head,))


def spot(ready: Prepared, bounds: Bounds, workers: int, reporter: Reporter) -> Spot:
    """Run the first tier on the images of `ready`, then the whole protocol on drawn survivors until decided.

    Args:
        ready: sized; its work is the protocol, with the seed of its noise.
        workers: with more than one the model is from a folder.
    """
    work, indices = ready.work, ready.subset.indices
    workers = min(workers, len(indices))
    tier = FirstTier(**vars(work))
    reporter.say(cost_line(tier, len(indices), workers, ready.measured), "cost")
    survivors, masking = attacked(replace(ready, work=tier), indices, workers, reporter)
    if tier.protocol == work.protocol:  # there is no more to run: every survivor is robust
        return Spot(len(survivors), len(survivors), 0, 0, 0, masking=masking)
    if bounds.least <= len(survivors):
        reporter.say(
            f"{len(survivors)} survived. Of these, drawn at random until the claim is decided, at most: "
            + cost_line(work, max(len(survivors), 1), workers, ready.measured),
            "cost",
        )

    def broken(ids: Sequence[int]) -> list[bool]:
        nonlocal masking
        robust, sign = attacked(ready, ids, workers, reporter)
        masking = masking or sign  # of the first tier where that has one, since it met all images
        return [i not in robust for i in ids]

    found = decide(survivors, bounds, broken, work.micro_batch_size * workers, say=reporter.say)
    return replace(found, masking=masking)


def decide(
    survivors: Sequence[int],
    bounds: Bounds,
    broken: Callable[[Sequence[int]], Sequence[bool]],
    batch: int,
    entropy: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Spot:
    """Draw survivors without replacement until the failures among them decide the bounds: each time as many
    as show the lower part if none of them fails, at most `batch`.

    How many are drawn next depends on what was drawn before alone, so the sequence stays valid.

    Args:
        broken: runs the whole protocol on ids, ascending, and says for each whether it was broken.
        entropy: seed of the order of the draw; None, as in every real verification: fresh from the system,
            since a draw that the author of the claim can predict proves nothing.
        say: is told, before each batch runs, how many are drawn by then.
    """
    size = len(survivors)
    # Failures F with which the claim's lower part holds: F <= most_failures; its upper: F >= least_failures.
    most_failures = size - bounds.least
    least_failures = 0 if bounds.most is None else size - bounds.most
    if most_failures < 0 or not size:
        return Spot(size, 0, 0, 0, size)
    entropy = secrets.randbits(_ENTROPY_BITS) if entropy is None else entropy
    order = np.random.default_rng(entropy).permutation(np.asarray(survivors))
    failures = FailureSequence(size, LEVEL)
    while not (
        failures.low > most_failures
        or failures.high < least_failures
        or (failures.high <= most_failures and failures.low >= least_failures)
    ):
        count = batch
        if failures.high > most_failures:
            count = min(max(failures.draws_to_exclude(most_failures + 1), _FEWEST), batch)
        ids = sorted(order[failures.drawn : failures.drawn + count].tolist())
        say(f"drawn {failures.drawn + len(ids)} of {size} survivors")
        failures.update(broken(ids))
    return Spot(
        size,
        failures.drawn,
        failures.failures,
        failures.low,
        failures.high,
        f"{entropy:032x}" if failures.drawn else None,
    )
