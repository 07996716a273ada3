"""Findings: what one stage of an evaluation learned about one sample; all that is sent, kept and resumed."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustzoo.attacks.clean_pass import Clean

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
