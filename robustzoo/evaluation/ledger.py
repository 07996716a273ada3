"""The ledger of an evaluation: all that is known of every sample, and what is still to be done with it."""

from __future__ import annotations

import json
import struct
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robustzoo.attacks.clean_pass import Clean
from robustzoo.cards.witnesses import Witnesses

# Stage 0 classifies the clean image, stage k is the k-th member of the protocol.
CLEAN = 0
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Broken:
    """A success: the attempt and iteration that found it, and the witness that it left.

    point: (C, H, W) as `cards.witnesses.compact` keeps it, uint8 or float32. lead: by how much the best wrong
    class leads in logits there.
    """

    target: int | None
    restart: int
    iteration: int
    point: np.ndarray
    lead: float


@dataclass(frozen=True)
class Finding:
    """One stage's result for one sample.

    size: the micro-batch shape it was computed at. clean: of stage 0 alone. forwards, backwards: passes of
    this sample in this stage. blind: the member saw no gradient but zero.
    """

    id: int
    stage: int
    size: int
    forwards: int
    backwards: int = 0
    blind: bool = False
    clean: Clean | None = None
    broken: Broken | None = None


def encode(findings: Sequence[Finding], head: dict[str, Any]) -> bytes:
    """Findings and what `head` says of them as bytes: a JSON document, then the points."""
    rows, points = [], []
    for found in findings:
        row: dict[str, Any] = {
            "id": found.id,
            "stage": found.stage,
            "size": found.size,
            "passes": [found.forwards, found.backwards],
            "blind": found.blind,
        }
        if found.clean is not None:
            row["clean"] = [found.clean.label, found.clean.predicted, list(found.clean.targets)]
        if found.broken is not None:
            by = found.broken
            row["broken"] = [by.target, by.restart, by.iteration, by.lead]
            row["point"] = [by.point.dtype.name, list(by.point.shape)]
            points.append(np.ascontiguousarray(by.point).tobytes())
        rows.append(row)
    text = json.dumps({**head, "findings": rows}, separators=(",", ":")).encode("ascii")
    return b"".join((_LENGTH.pack(len(text)), text, *points))


def decode(content: bytes) -> tuple[list[Finding], dict[str, Any]]:
    """The inverse of `encode`."""
    (length,) = _LENGTH.unpack_from(content)
    at = _LENGTH.size + length
    head = json.loads(content[_LENGTH.size : at])
    findings = []
    for row in head.pop("findings"):
        clean = broken = None
        if "clean" in row:
            label, predicted, targets = row["clean"]
            clean = Clean(row["id"], label, predicted, tuple(targets))
        if "broken" in row:
            dtype, shape = np.dtype(row["point"][0]), row["point"][1]
            count = int(np.prod(shape))
            point = np.frombuffer(content, dtype, count, at).reshape(shape).copy()
            at += count * dtype.itemsize
            target, restart, iteration, lead = row["broken"]
            broken = Broken(target, restart, iteration, point, lead)
        forwards, backwards = row["passes"]
        findings.append(
            Finding(row["id"], row["stage"], row["size"], forwards, backwards, row["blind"], clean, broken)
        )
    return findings, head


@dataclass(frozen=True)
class Carried:
    """What broke a sample at a smaller epsilon (exact, as text), and so at this one."""

    attack: str
    broken: Broken
    epsilon: str


@dataclass(slots=True)
class _Record:
    """One sample. stage: the next one to run, or the number of stages where nothing is left to do."""

    stage: int = CLEAN
    size: int = 0
    forwards: int = 0
    backwards: int = 0
    clean: Clean | None = None
    attack: str | None = None
    broken: Broken | None = None
    epsilon: str | None = None


@dataclass
class Ledger:
    """Findings by sample. Order, grouping and repetition of stages elsewhere leave no trace in it.

    Args:
        ids: the samples of this evaluation (or shard).
        attacks: names of the protocol's members, in order.
        micro_batch_size: the shape that was asked for.
        carried: sample id -> what broke it at a smaller epsilon.

    Attributes:
        queues: per stage the samples that wait for it and are in nobody's hands.
        left: per stage the samples whose next stage it is, waiting or in hand.
        done: per stage the samples that have been through it.
    """

    ids: Sequence[int]
    attacks: Sequence[str]
    micro_batch_size: int
    carried: Mapping[int, Carried] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stages = 1 + len(self.attacks)
        self._records = {int(i): _Record(size=self.micro_batch_size) for i in self.ids}
        self.queues: list[deque[int]] = [deque() for _ in range(stages)]
        self.queues[CLEAN].extend(self._records)
        self.left, self.done = [0] * stages, [0] * stages
        self.left[CLEAN] = len(self._records)
        self.blind: Counter[str] = Counter()
        self.correct = self.robust = 0

    def name(self, stage: int) -> str:
        """For people: "clean", or the member's name."""
        return "clean" if stage == CLEAN else self.attacks[stage - 1]

    def add(self, found: Finding) -> None:
        """Enter a finding; the sample goes on to its next stage, or is done with.

        Raises:
            ValueError: a sample that is not in this evaluation, or not at that stage.
        """
        record = self._records.get(found.id)
        if (
            record is None
            or record.stage != found.stage
            or (found.stage == CLEAN) != (found.clean is not None)
        ):
            raise ValueError(f"no result of stage {found.stage} is expected for sample {found.id}")
        self.left[found.stage] -= 1
        self.done[found.stage] += 1
        record.forwards += found.forwards
        record.backwards += found.backwards
        record.size = min(record.size, found.size)
        if found.blind:
            self.blind[self.name(found.stage)] += 1
        record.stage += 1
        if found.clean is not None:
            self._classify(record, found.clean)
        elif found.broken is not None:
            record.attack, record.broken = self.name(found.stage), found.broken
            self.robust -= 1
            record.stage = len(self.queues)
        if record.stage < len(self.queues):
            self.left[record.stage] += 1
            self.queues[record.stage].append(found.id)

    def _classify(self, record: _Record, clean: Clean) -> None:
        record.clean = clean
        if not clean.correct:
            record.stage = len(self.queues)
            return
        self.correct += 1
        if clean.id not in self.carried:
            self.robust += 1
            return
        carried = self.carried[clean.id]
        record.attack, record.broken, record.epsilon = carried.attack, carried.broken, carried.epsilon
        record.stage = len(self.queues)

    def restore(self, findings: Sequence[Finding]) -> None:
        """Enter what an earlier session found, before anything is handed out. Raises: as `add`."""
        for found in findings:
            self.add(found)
        for stage, queue in enumerate(self.queues):
            waiting = [i for i in queue if self._records[i].stage == stage]
            queue.clear()
            queue.extend(sorted(waiting))

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do, in nobody's hands either."""
        return not any(self.left)

    def startable(self) -> int | None:
        """The first stage that is worth starting now: one with waiting samples, and either enough of them to
        fill a micro-batch or no more to come from earlier stages."""
        for stage, queue in enumerate(self.queues):
            if len(queue) >= self.micro_batch_size or (queue and not any(self.left[:stage])):
                return stage
        return None

    def take(self, stage: int) -> Clean | int | None:
        """A sample that waits for `stage` (its id, before it was classified), now in the caller's hands; None
        where there is none."""
        if not self.queues[stage]:
            return None
        i = self.queues[stage].popleft()
        return self._records[i].clean or i

    @property
    def passes(self) -> dict[str, int]:
        """Passes of all samples so far, as Evidence states them."""
        return {
            "forward": sum(record.forwards for record in self._records.values()),
            "backward": sum(record.backwards for record in self._records.values()),
        }

    def samples(self) -> Iterator[dict[str, Any]]:
        """Every sample as Evidence states it, once all are finished."""
        for i, record in self._records.items():
            clean, by = record.clean, record.broken
            assert clean is not None  # every sample has been through stage 0
            stated: dict[str, Any] = {
                "id": i,
                "label": clean.label,
                "predicted": clean.predicted,
                "robust": clean.correct and by is None,
                "broken_by": None,
            }
            if by is not None:
                stated["broken_by"] = {
                    "attack": record.attack,
                    "target": by.target,
                    "restart": by.restart,
                    "iteration": by.iteration,
                    **({} if record.epsilon is None else {"epsilon": record.epsilon}),
                }
            if record.size < self.micro_batch_size:
                stated["micro_batch_size"] = record.size
            yield stated

    def hand_over_witnesses(self, image_shape: Sequence[int]) -> Witnesses:
        """The points that fooled the model; the last that is asked of a ledger, which lets go of them."""
        broken = [(i, r.broken) for i, r in self._records.items() if r.broken is not None]
        self._records.clear()
        return Witnesses.of(
            [i for i, _ in broken],
            [by.point for _, by in broken],
            [by.lead for _, by in broken],
            image_shape,
        )
