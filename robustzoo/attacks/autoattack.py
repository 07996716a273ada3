"""Run a protocol: the clean pass, then every member on the samples that are still robust.

`run_protocol` does it all in one call; `clean_pass` and `lanes.run_member` are its stages, for callers that
share a long evaluation among processes and keep what is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from torch import Tensor, nn

from robustzoo.attacks.answers import check_finite, predict, seeded_draws
from robustzoo.attacks.apgd import APGD
from robustzoo.attacks.apgd_l1 import APGDL1
from robustzoo.attacks.fab import FAB, UntargetedFAB
from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.lanes import Lanes, Outcome, Sample, Search, run_member
from robustzoo.attacks.malt import MALT, MALTL1
from robustzoo.attacks.members import MAX_CANDIDATES
from robustzoo.attacks.pgd_member import PGD
from robustzoo.attacks.protocols import Protocol, ProtocolError
from robustzoo.attacks.square import Square
from robustzoo.registry.threat_model import ThreatModel

SEARCHES: dict[str, type[Search]] = {
    "apgd": APGD,
    "apgd-l1": APGDL1,
    "malt": MALT,
    "malt-l1": MALTL1,
    "fab": FAB,
    "fab-untargeted": UntargetedFAB,
    "square": Square,
    "pgd": PGD,
}


@dataclass(frozen=True)
class BrokenBy:
    """Which attempt found the witness: target class (None: untargeted), restart, and the iteration within
    it."""

    attack: str
    target: int | None
    restart: int
    iteration: int


@dataclass(frozen=True)
class Clean:
    """A sample before any attack. targets: the other classes by falling logit, as many as a
    search may look at."""

    id: int
    label: int
    predicted: int
    targets: tuple[int, ...]

    @property
    def correct(self) -> bool:
        return self.predicted == self.label

    def waiting(self, dataset) -> Sample:
        """The sample as attacks take it; its image is read when a lane does."""
        return Sample(self.id, self.label, self.targets, lambda: dataset[self.id][0])


@dataclass(frozen=True)
class SampleResult:
    """The verdict on one sample.

    witness: float32 (C, H, W) on the CPU, a point in ball and box that fools the model; margin: z_y minus the
    largest other logit there (negative, or zero at a tie). forwards, backwards: passes this sample needed,
    the same however it was batched. blind: attacks that saw no gradient but zero on this sample.
    """

    id: int
    label: int
    predicted: int
    robust: bool
    broken_by: BrokenBy | None
    witness: Tensor | None
    margin: float | None
    forwards: int
    backwards: int
    blind: tuple[str, ...] = ()


def run_protocol(
    model: nn.Module,
    dataset,
    ids: Sequence[int],
    protocol: Protocol,
    threat_model: ThreatModel,
    num_classes: int,
    *,
    seed: int,
    micro_batch_size: int,
    device: torch.device | str | None = None,
    progress: Callable[[dict], None] | None = None,
) -> list[SampleResult]:
    """Attack samples `ids` of `dataset` and return a result for each, sorted by id.

    Args:
        model: pixels (B, C, H, W) in [0, 1] to logits (B, num_classes); frozen and in eval mode meanwhile.
        dataset: dataset[i] gives (x float32 (C, H, W) in [0, 1], int label); images are read as lanes need
        them.
        ids: indices into dataset without duplicates; they also key the noise.
        threat_model: `.norm` as the protocol's, `.eps` in pixel units.
        seed: of all noise. micro_batch_size: lanes, the one shape the network sees; results depend on it only
            through the rounding of float32 kernels.
        device: where the model is (default: that of its first parameter).
        progress: called with {"stage", "done", "total", "robust"} as samples finish a stage.

    Raises:
        ValueError: duplicate ids, a micro-batch below 1, a label outside [0, num_classes), wrong logits
        shape.
        ProtocolError: the protocol was made for another norm.
        NonFiniteLogits: NaN or infinite logits, naming the samples.
    """
    if protocol.norm != threat_model.norm:
        raise ProtocolError(f"protocol {protocol.name} was made for {protocol.norm}, not {threat_model.norm}")
    if micro_batch_size < 1:
        raise ValueError(f"micro_batch_size must be at least 1, got {micro_batch_size}")
    if len(set(ids)) != len(ids):
        raise ValueError("ids must not repeat: each names one sample and keys its noise")
    if not len(ids):
        return []
    device = torch.device(device) if device is not None else _device_of(model)
    lanes = Lanes(micro_batch_size, tuple(dataset[ids[0]][0].shape), device)
    report = progress or (lambda event: None)
    draws = protocol.draws
    with frozen(model), seeded_draws(seed, device, draws):
        results, waiting = {}, []
        for cleans in clean_pass(model, dataset, ids, lanes, num_classes, draws):
            for clean in cleans:
                results[clean.id] = SampleResult(
                    clean.id, clean.label, clean.predicted, clean.correct, None, None, None, draws, 0
                )
                waiting += [clean.waiting(dataset)] if clean.correct else []
                report({"stage": "clean", "done": len(results), "total": len(ids), "robust": len(waiting)})
        for member in protocol.members:
            search = SEARCHES[member.algorithm](member, lanes, threat_model.norm, threat_model.eps, seed)
            robust, total = len(waiting), len(waiting)
            for done, outcome in enumerate(run_member(model, search, waiting), 1):
                results[outcome.id] = _merged(results[outcome.id], member.attack, outcome)
                robust -= outcome.broken
                report({"stage": member.attack, "done": done, "total": total, "robust": robust})
            waiting = [sample for sample in waiting if results[sample.id].robust]
    return [results[i] for i in sorted(results)]


def _device_of(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return first.device if first is not None else torch.device("cpu")


def clean_pass(
    model: nn.Module, dataset, ids: Iterable[int], lanes: Lanes, num_classes: int, draws: int = 1
) -> Iterator[list[Clean]]:
    """One forward per sample (and draw of a random model), in batches of the lanes' shape: predictions and
    rankings of the targets.

    Raises:
        ValueError: a label outside [0, num_classes), wrong logits shape. NonFiniteLogits: naming the samples.
    """
    size, queue = len(lanes), iter(ids)
    batch, labels = lanes.x.clone(), torch.zeros_like(lanes.y)
    while chunk := [int(i) for i in islice(queue, size)]:
        for lane, i in enumerate(chunk):
            image, label = dataset[i]
            if not 0 <= int(label) < num_classes:
                raise ValueError(f"sample {i} has label {label}; expected 0 to {num_classes - 1}")
            batch[lane], labels[lane] = image.to(batch), int(label)
        logits = predict(model, batch, draws)
        if logits.shape != (size, num_classes):
            expected = f"({size}, {num_classes})"
            raise ValueError(f"the model's output has shape {tuple(logits.shape)}; expected {expected}")
        here = torch.arange(size, device=batch.device)
        check_finite(
            logits, torch.tensor(chunk + [0] * (size - len(chunk)), device=batch.device), here < len(chunk)
        )
        predicted, labelled = logits.argmax(1).tolist(), labels.tolist()
        # The label last, the others by falling logit, ties by index: the order in which targets are tried.
        others = logits.scatter(1, labels.unsqueeze(1), -torch.inf).sort(dim=1, descending=True, stable=True)
        targets = others.indices[:, : min(MAX_CANDIDATES, num_classes - 1)].tolist()
        yield [
            Clean(i, labelled[lane], predicted[lane], tuple(targets[lane])) for lane, i in enumerate(chunk)
        ]


def _merged(before: SampleResult, attack: str, outcome: Outcome) -> SampleResult:
    """The sample's result after one more member."""
    after = replace(
        before,
        forwards=before.forwards + outcome.forwards,
        backwards=before.backwards + outcome.backwards,
        blind=(*before.blind, attack) if outcome.blind else before.blind,
    )
    if not outcome.broken:
        return after
    by = BrokenBy(attack, outcome.target, outcome.restart, outcome.iteration)
    return replace(after, robust=False, broken_by=by, witness=outcome.point, margin=outcome.margin)
