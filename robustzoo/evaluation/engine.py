"""The engine: attacks in one process; samples go in, findings with finished witnesses come out."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustzoo.attacks.clean_pass import Clean, clean_pass
from robustzoo.attacks.lanes import Lanes, run_attack
from robustzoo.attacks.protocols import Protocol, protocol
from robustzoo.attacks.searches import SEARCHES
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.ledger import CLEAN, Finding, Success
from robustzoo.evaluation.machine import ran_out_of_memory
from robustzoo.evaluation.witnessing import make_witnesses
from robustzoo.registry import ThreatModel


@dataclass(frozen=True)
class Work:
    """Everything a process needs beside the model: what to attack and how. Arguments as of `evaluate`."""

    dataset: Any
    protocol_name: str
    threat_model: ThreatModel
    num_classes: int
    seed: int
    micro_batch_size: int
    device: str
    precision: str = "float32"
    compiled: bool = False

    @property
    def protocol(self) -> Protocol:
        """Made anew from its name wherever it is needed: it is data, and small."""
        return protocol(self.protocol_name, self.threat_model, self.num_classes)

    @property
    def attacks(self) -> list[str]:
        """Their names, in the order in which they run."""
        return [attack.name for attack in self.protocol.attacks]


def passes_at_most(protocol: Protocol) -> tuple[int, int]:
    """(forwards, backwards) that a sample costs at most.

    One forward for the clean image and one for the second look at the point that breaks it (each for every
    draw of a random model), and what every attack needs: see `Attack.passes`.
    """
    passes = [attack.passes for attack in protocol.attacks]
    return 2 * protocol.draws + sum(forward for forward, _ in passes), sum(backward for _, backward in passes)


@dataclass(frozen=True)
class ModelFolder:
    """A model that each process reads from disk, refused unless the weights have this hash. trust: the file
    of Python that builds it, where its user has asked for that."""

    path: Path
    sha256: str
    trust: Path | None = None


PRECISIONS = ("float32", "tf32", "bf16")


def check_precision(precision: str, device: torch.device) -> None:
    """Raise RobustzooError unless attacks can search in that precision on that device."""
    if precision not in PRECISIONS:
        raise RobustzooError(f"precision is {precision!r}; expected one of {', '.join(PRECISIONS)}")
    if precision == "tf32" and device.type != "cuda":
        raise RobustzooError(
            "precision is 'tf32', which only a CUDA device has; expected float32 or bf16 here"
        )


@contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Within the block products of float32 matrices on a GPU are rounded to TF32, or are not."""
    matmul, convolution = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high" if allowed else "highest")
        torch.backends.cudnn.allow_tf32 = allowed
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution


class Forwards:
    """The two ways in which an evaluation calls a model.

    Attributes:
        search: what the attacks climb, pixels x: (B, C, H, W) in [0, 1] to float32 logits (B, K).
        judge: the model itself in strict float32, which alone says what fools.

    Args:
        precision: of the search, one of PRECISIONS. compiled: search through torch.compile.
    """

    def __init__(
        self, model: Callable[[Tensor], Tensor], precision: str, compiled: bool, device: torch.device
    ) -> None:
        self._model, self._precision, self._device = model, precision, device
        self._forward: Callable[[Tensor], Tensor] = torch.compile(model, dynamic=False) if compiled else model
        plain = precision == "float32" and not compiled
        self.search: Callable[[Tensor], Tensor] = model if plain else self._search
        self.judge: Callable[[Tensor], Tensor] = model if precision != "tf32" else self._judge

    @contextmanager
    def searching(self) -> Iterator[None]:
        """Within the block gradients too are computed as the search asks; `judge` stays strict."""
        with tf32(self._precision == "tf32"):
            yield

    def _search(self, x: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._precision == "bf16"):
            return self._forward(x).float()

    def _judge(self, x: Tensor) -> Tensor:
        with tf32(False):
            return self._model(x)


# Results are handed on when a micro-batch of them has gathered, or after this time: what a crash can lose.
_HAND_ON_SECONDS = 5.0


class _Feed:
    """Hands out samples one by one, remembers those that are not finished, and can give them out again."""

    def __init__(self, tasks: Iterable[Any]) -> None:
        self._tasks, self._again, self._out = iter(tasks), [], {}

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> Any:
        task = self._again.pop() if self._again else next(self._tasks)
        self._out[_id(task)] = task
        return task

    def finish(self, sample: int) -> Any:
        return self._out.pop(sample)

    def put_back(self) -> None:
        self._again += reversed(self._out.values())
        self._out = {}


def _id(task: Clean | int) -> int:
    return task if isinstance(task, int) else task.id


class Stages:
    """Runs the stages of `work` on a model that is frozen and on the work's device.

    Where memory runs out, the micro-batch is halved for the rest of this process, and the samples in flight
    start their stage again; their findings name the smaller shape.
    """

    def __init__(self, model: Callable[[Tensor], Tensor], work: Work) -> None:
        self._work, self._micro_batch_size = work, work.micro_batch_size
        self._device = torch.device(work.device)
        self._attacks = work.protocol.attacks
        self._forwards = Forwards(model, work.precision, work.compiled, self._device)
        self._ready: list[Finding] = []
        self._broken: list[Finding] = []  # to become witnesses
        self._handed_on = time.monotonic()

    def run(self, stage: int, tasks: Iterable[Clean | int]) -> Iterator[list[Finding]]:
        """Bring every sample of `tasks` through one stage; findings come in batches, in no fixed order.

        Args:
            tasks: ids for stage 0, else what stage 0 found; read one by one as lanes become free.

        Raises:
            RobustzooError: at a micro-batch of one. Otherwise as `run_attack` and `clean_pass`.
        """
        feed = _Feed(tasks)
        while True:
            try:
                yield from self._clean(feed) if stage == CLEAN else self._attack(stage, feed)
                if self._ready or self._broken:
                    yield self._hand_on()
                return
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if not ran_out_of_memory(error):
                    raise
                if self._micro_batch_size == 1:
                    raise RobustzooError(
                        f"memory ran out on {self._device} with one image at a time: use a device with more, "
                        "or fewer workers that share it"
                    ) from error
            self._micro_batch_size //= 2
            feed.put_back()
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()

    def _lanes(self) -> Lanes:
        return Lanes(self._micro_batch_size, tuple(self._work.dataset.image_shape), self._device)

    def _clean(self, feed: _Feed) -> Iterator[list[Finding]]:
        work, judge, draws = self._work, self._forwards.judge, self._work.protocol.draws
        for cleans in clean_pass(judge, work.dataset, feed, self._lanes(), work.num_classes, draws):
            for clean in cleans:
                feed.finish(clean.id)
            yield [Finding(clean.id, CLEAN, self._micro_batch_size, draws, clean=clean) for clean in cleans]

    def _attack(self, stage: int, feed: _Feed) -> Iterator[list[Finding]]:
        work, attack = self._work, self._attacks[stage - 1]
        if attack.algorithm not in SEARCHES:
            raise RobustzooError(
                "common corruptions are no attack: measure them anew with `robustzoo evaluate MODEL "
                "--threat-model corruptions`; --mode replay verifies the rest of a card"
            )
        with self._forwards.searching():
            search = SEARCHES[attack.algorithm](
                attack, self._lanes(), work.threat_model.norm, work.threat_model.eps, work.seed
            )
            waiting = (clean.waiting(work.dataset) for clean in feed)
            for outcome in run_attack(self._forwards.search, search, waiting, self._forwards.judge):
                feed.finish(outcome.id)
                success = None
                if outcome.point is not None:
                    success = Success(
                        stage, outcome.target, outcome.restart, outcome.iteration, outcome.point
                    )
                found = Finding(
                    outcome.id,
                    stage,
                    self._micro_batch_size,
                    outcome.forwards,
                    outcome.backwards,
                    outcome.blind,
                    success=success,
                )
                (self._ready if success is None else self._broken).append(found)
                full = len(self._ready) + len(self._broken) >= self._micro_batch_size
                if full or time.monotonic() - self._handed_on > _HAND_ON_SECONDS:
                    yield self._hand_on()

    def _hand_on(self) -> list[Finding]:
        """All that is ready, once the broken ones have their witnesses."""
        work, judge = self._work, self._forwards.judge
        findings = self._ready + make_witnesses(
            judge, work.dataset, self._broken, work.threat_model, self._micro_batch_size, self._device
        )
        self._ready, self._broken = [], []
        self._handed_on = time.monotonic()
        return findings
