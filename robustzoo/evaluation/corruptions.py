"""evaluate_corruptions(): Evidence of how a model stands common corruptions, each at each severity."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustzoo.attacks.clean_pass import Clean, clean_pass
from robustzoo.attacks.lanes import Lanes
from robustzoo.cards.evidence import Evidence
from robustzoo.data.readers.corrupted import Corrupted, open_corrupted
from robustzoo.evaluation.checks import check_arguments
from robustzoo.evaluation.prepare import Prepared, ask, identify, prepare, state_digest
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.terms import (
    check_writable,
    place_of,
    refuse_to_replace,
    reserved,
    run_of,
    stated_threat_model,
    terms_of,
    write_evidence,
)
from robustzoo.registry.threat_model import CORRUPTION_NAMES, CORRUPTIONS, cell


def evaluate_corruptions(
    model: nn.Module,
    data: Any,
    corrupted: str | Path | None = None,
    *,
    severity: int = 5,
    out: str | Path | None = None,
    name: str | None = None,
    progress: bool | Callable[[dict], None] = True,
    **options: Any,
) -> Evidence:
    """Classify images under the fifteen corruptions of Hendrycks and Dietterich, up to a severity.

    Args:
        model, data, out, name, progress: as of `evaluate`.
        corrupted: a folder of published files, CIFAR-10-C's arrays or ImageNet-C's folders, in the order
            of `data`; None: made here from `data` (extra `corruptions`).
        severity: the highest, 1 to 5.
        options: n, indices, micro_batch_size, device, data_root as of `evaluate`; seed: of the corruptions
            that are made here.

    Returns:
        Evidence with the threat model "corruptions:S". An image is robust where it is right clean and under
        all of them, and broken by the first, in the order of severities, under which it is not;
        `corruptions.correct` counts the images that are right under each. No file of witnesses.

    Raises: RobustzooError, DataError, MissingData, as `evaluate`.
    """
    asked = ask(model, f"{CORRUPTIONS}:{severity}", CORRUPTIONS, answers_only=True, **options)
    check_arguments(name=name, progress=progress, out=out)
    if out is not None:
        out = Path(out)
        check_writable(out)
    weights, identity = state_digest(model), identify(model, name)
    with (
        reserved(out),
        Reporter(progress) as reporter,
        prepare(model, data, asked, reporter, identity.sha256) as ready,
    ):
        if identity.warning is not None:
            reporter.warn(identity.warning)
        ready = ready.sized(asked.micro_batch_size, reporter=reporter)
        terms = terms_of(identity.described(weights), ready)
        if out is not None:
            refuse_to_replace(place_of(terms, out), terms)
        counted = _count(ready, open_corrupted(ready.dataset, corrupted, asked.seed), severity, reporter)
        cells = severity * len(CORRUPTION_NAMES)
        evidence = Evidence.build(
            **{**terms, "threat_model": stated_threat_model(terms)},
            samples=counted.samples(),
            passes={"forward": len(counted.clean) * (1 + cells), "backward": 0},
            run=run_of(ready, workers=1),
            corruptions=counted.section,
        )
        if out is not None:
            write_evidence(evidence, out)
        return evidence


@dataclass
class _Counts:
    """The clean answers, the first corruption that broke each image, and the section of the Evidence."""

    clean: list[Clean]
    broken: dict[int, str] = field(default_factory=dict)
    section: dict[str, Any] = field(default_factory=dict)

    def samples(self) -> list[dict[str, Any]]:
        """Every image as Evidence states it."""
        at = {"target": None, "restart": 0, "iteration": 0}
        return [
            {
                "id": one.id,
                "label": one.label,
                "predicted": one.predicted,
                "robust": one.correct and one.id not in self.broken,
                "broken_by": {"attack": self.broken[one.id], **at} if one.id in self.broken else None,
            }
            for one in self.clean
        ]


def _count(ready: Prepared, source: Corrupted, severity: int, reporter: Reporter) -> _Counts:
    """Classify the clean images, then those of each corruption at each severity up to this one."""
    counts, content = _Counts(_answers(ready, ready.dataset)), hashlib.sha256()
    labels = {one.id: one.label for one in counts.clean}
    correct: dict[str, list[int]] = {corruption: [] for corruption in CORRUPTION_NAMES}
    for strength in range(1, severity + 1):
        for corruption in CORRUPTION_NAMES:
            answers = _answers(ready, _Under(source, corruption, strength, labels, content.update))
            correct[corruption].append(sum(one.correct for one in answers))
            for clean, one in zip(counts.clean, answers, strict=True):
                if clean.correct and not one.correct:
                    counts.broken.setdefault(clean.id, cell(corruption, strength))
            reporter.say(f"{corruption} {strength}: {correct[corruption][-1]} of {len(answers)} right")
    counts.section = {"source": source.source, "digest": content.hexdigest(), "correct": correct}
    return counts


@dataclass(frozen=True)
class _Under:
    """The images under one corruption, as `clean_pass` reads a dataset; `look` is shown the pixels."""

    source: Corrupted
    corruption: str
    severity: int
    labels: dict[int, int]
    look: Callable[[bytes], object]

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        x = self.source.image(i, self.corruption, self.severity)
        self.look(x.numpy().tobytes())
        return x, self.labels[i]


def _answers(ready: Prepared, images: Any) -> list[Clean]:
    work, ids = ready.work, ready.subset.indices
    lanes = Lanes(work.micro_batch_size, tuple(ready.dataset.image_shape), torch.device(work.device))
    return [one for part in clean_pass(ready.model, images, ids, lanes, work.num_classes) for one in part]
