"""What a protocol finds of single samples, on the path of every evaluation: work, ledger, stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.protocols import Protocol
from robustzoo.cards import BrokenBy
from robustzoo.data import ImageDataset, TensorSource
from robustzoo.evaluation.engine import Work
from robustzoo.evaluation.ledger import CLEAN, Finding, Ledger
from robustzoo.evaluation.machine import device_of
from robustzoo.evaluation.workers import run_here
from robustzoo.registry import ThreatModel


@dataclass(frozen=True)
class Result:
    """All that is found of one sample. witness: float32 (C, H, W), finished as Evidence ships it; margin: z_y
    minus the largest other logit there; blind: attacks that saw no gradient but zero."""

    id: int
    label: int
    predicted: int
    robust: bool
    broken_by: BrokenBy | None
    witness: Tensor | None
    margin: float | None
    forwards: int
    backwards: int
    blind: tuple[str, ...]


@dataclass(frozen=True)
class GivenProtocol(Work):
    """Work whose protocol has no name: a shortened one, for example."""

    given: Protocol | None = None

    @property
    def protocol(self) -> Protocol:
        assert self.given is not None
        return self.given


def run_protocol(
    model: nn.Module,
    data: ImageDataset | Sequence[tuple[Tensor, int]],
    ids: Sequence[int],
    protocol: Protocol,
    threat_model: ThreatModel,
    num_classes: int,
    *,
    micro_batch_size: int,
    seed: int = 0,
) -> list[Result]:
    """Attack samples `ids` of `data` in this process: a result for each, sorted by id."""
    if not isinstance(data, ImageDataset):
        data = TensorSource(torch.stack([x for x, _ in data]), torch.tensor([y for _, y in data]))
    work = GivenProtocol(
        data,
        protocol.name,
        threat_model,
        num_classes,
        seed,
        micro_batch_size,
        str(device_of(model)),
        given=protocol,
    )
    attacks = work.attacks
    ledger, found = Ledger(ids, attacks, micro_batch_size), defaultdict(list)

    def record(findings: list[Finding]) -> None:
        for finding in findings:
            ledger.add(finding)
            found[finding.id].append(finding)

    with frozen(model):
        run_here(model, work, ledger, record)
    results = [_result(found[stated["id"]], stated, attacks) for stated in ledger.samples()]
    assert ledger.passes == {
        "forward": sum(r.forwards for r in results),
        "backward": sum(r.backwards for r in results),
    }
    return sorted(results, key=lambda r: r.id)


def _result(findings: list[Finding], stated: dict, attacks: list[str]) -> Result:
    """A sample's findings, one of each stage that it went through, beside what Evidence states of it."""
    assert [finding.stage for finding in findings] == [*range(len(findings))] and findings[0].stage == CLEAN
    success, by = findings[-1].success, stated["broken_by"]
    return Result(
        stated["id"],
        stated["label"],
        stated["predicted"],
        stated["robust"],
        None if by is None else BrokenBy(**by),
        None if success is None else _pixels(success.point),
        None if success is None else -success.margin,
        sum(finding.forwards for finding in findings),
        sum(finding.backwards for finding in findings),
        tuple(attacks[finding.stage - 1] for finding in findings if finding.zero_gradients),
    )


def _pixels(point: np.ndarray) -> Tensor:
    """A witness as its reader sees it: levels of a byte are k/255 in float32."""
    levels = torch.from_numpy(point)
    return levels / 255 if levels.dtype == torch.uint8 else levels
