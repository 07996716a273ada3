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

# Stage 0 classifies the clean image, stage k is the k-th attack of the protocol.
CLEAN = 0
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Success:
    """What broke a sample, from the attack to the Evidence.

    stage, target, restart, iteration: the attempt and the iteration that found it; target: None for an
    untargeted attack. point: (C, H, W), the float32 tensor that the attack found; once it is a witness, uint8
    or float32 as `cards.witnesses.compact` keeps it. margin: by how much the best wrong class leads in logits
    there, once it is a witness. epsilon: the smaller one, exact and as text, at which it was found on a
    curve; else None.
    """

    stage: int
    target: int | None
    restart: int
    iteration: int
    point: Any
    margin: float = 0.0
    epsilon: str | None = None


@dataclass(frozen=True)
class Finding:
    """One stage's result for one sample.

    micro_batch_size: the shape it was computed at. clean: of stage 0 alone. forwards, backwards: passes of
    this sample in this stage. zero_gradients: the attack saw no gradient but zero. success: where it broke.
    """

    id: int
    stage: int
    micro_batch_size: int
    forwards: int
    backwards: int = 0
    zero_gradients: bool = False
    clean: Clean | None = None
    success: Success | None = None


def encode(findings: Sequence[Finding], head: dict[str, Any]) -> bytes:
    """Findings and what `head` says of them as bytes: a JSON document, then the points."""
    rows, points = [], []
    for found in findings:
        row: dict[str, Any] = {
            "id": found.id,
            "stage": found.stage,
            "size": found.micro_batch_size,
            "passes": [found.forwards, found.backwards],
            "blind": found.zero_gradients,
        }
        if found.clean is not None:
            row["clean"] = [found.clean.label, found.clean.predicted, list(found.clean.targets)]
        if found.success is not None:
            by = found.success
            row["broken"] = [by.target, by.restart, by.iteration, by.margin]
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
        clean = success = None
        if "clean" in row:
            label, predicted, targets = row["clean"]
            clean = Clean(row["id"], label, predicted, tuple(targets))
        if "broken" in row:
            dtype, shape = np.dtype(row["point"][0]), row["point"][1]
            count = int(np.prod(shape))
            point = np.frombuffer(content, dtype, count, at).reshape(shape).copy()
            at += count * dtype.itemsize
            target, restart, iteration, margin = row["broken"]
            success = Success(row["stage"], target, restart, iteration, point, margin)
        forwards, backwards = row["passes"]
        findings.append(
            Finding(row["id"], row["stage"], row["size"], forwards, backwards, row["blind"], clean, success)
        )
    return findings, head


@dataclass(slots=True)
class _Record:
    """One sample. stage: the next one to run, or the number of stages where nothing is left to do."""

    stage: int = CLEAN
    micro_batch_size: int = 0
    forwards: int = 0
    backwards: int = 0
    clean: Clean | None = None
    success: Success | None = None


@dataclass
class Ledger:
    """Findings by sample. Order, grouping and repetition of stages elsewhere leave no trace in it.

    Args:
        ids: the samples of this evaluation (or shard).
        attacks: their names in the protocol, in order.
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
    carried: Mapping[int, Success] = field(default_factory=dict)

    def __post_init__(self) -> None:
        stages = 1 + len(self.attacks)
        self._records = {int(i): _Record(micro_batch_size=self.micro_batch_size) for i in self.ids}
        self.queues: list[deque[int]] = [deque() for _ in range(stages)]
        self.queues[CLEAN].extend(self._records)
        self.left, self.done = [0] * stages, [0] * stages
        self.left[CLEAN] = len(self._records)
        self.zero_gradients: Counter[str] = Counter()
        self.correct = self.robust = 0

    def name(self, stage: int) -> str:
        """For people: "clean", or the attack's name."""
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
        record.micro_batch_size = min(record.micro_batch_size, found.micro_batch_size)
        if found.zero_gradients:
            self.zero_gradients[self.name(found.stage)] += 1
        record.stage += 1
        if found.clean is not None:
            self._classify(record, found.clean)
        elif found.success is not None:
            record.success = found.success
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
        record.success = self.carried.get(clean.id)
        if record.success is None:
            self.robust += 1
        else:
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
            clean, by = record.clean, record.success
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
                    "attack": self.name(by.stage),
                    "target": by.target,
                    "restart": by.restart,
                    "iteration": by.iteration,
                    **({} if by.epsilon is None else {"epsilon": by.epsilon}),
                }
            if record.micro_batch_size < self.micro_batch_size:
                stated["micro_batch_size"] = record.micro_batch_size
            yield stated

    def hand_over_witnesses(self, image_shape: Sequence[int]) -> Witnesses:
        """The points that fooled the model; the last that is asked of a ledger, which lets go of them."""
        found = [(i, r.success) for i, r in self._records.items() if r.success is not None]
        self._records.clear()
        return Witnesses.of(
            [i for i, _ in found],
            [by.point for _, by in found],
            [by.margin for _, by in found],
            image_shape,
        )
