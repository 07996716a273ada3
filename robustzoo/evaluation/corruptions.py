"""evaluate_corruptions(): Evidence of how a model stands common corruptions, each at each severity."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.protocols import protocol as make_protocol
from robustzoo.cards.evidence import Evidence
from robustzoo.data.readers.corrupted import open_corrupted
from robustzoo.data.samples import choose_samples, open_samples
from robustzoo.evaluation import machine
from robustzoo.evaluation.checks import check_eval_mode, check_labels, check_model
from robustzoo.evaluation.prepare import identify, state_digest
from robustzoo.evaluation.terms import write_evidence
from robustzoo.registry.dataset_files import is_own
from robustzoo.registry.threat_model import CORRUPTION_NAMES, CORRUPTIONS, ThreatModel, cell


def evaluate_corruptions(
    model: nn.Module,
    data: Any,
    corrupted: str | Path | None = None,
    *,
    severity: int = 5,
    n: int | None = None,
    indices: Sequence[int] | None = None,
    seed: int = 0,
    micro_batch_size: int = 100,
    device: str | torch.device | None = None,
    data_root: str | Path | None = None,
    out: str | Path | None = None,
    name: str | None = None,
    say: Callable[[str], object] = lambda text: None,
) -> Evidence:
    """Classify images under the fifteen corruptions of Hendrycks and Dietterich, up to a severity.

    Args:
        model, data, n, indices, data_root, device, out, name: as of `evaluate`.
        corrupted: a folder of published files, CIFAR-10-C's arrays or ImageNet-C's folders, in the order
            of `data`; None: made here from `data` (extra `corruptions`).
        severity: the highest, 1 to 5.
        seed: of the corruptions that are made here.
        say: is told of each corruption that is done.

    Returns:
        Evidence with the threat model "corruptions:S". An image is robust where it is right clean and under
        all of them, and broken by the first, in the order of severities, under which it is not;
        `corruptions.correct` counts the images that are right under each. No file of witnesses.

    Raises: RobustzooError, DataError, MissingData, as `evaluate`.
    """
    started, clock = datetime.now(timezone.utc), time.monotonic()
    threat_model = ThreatModel.parse(f"{CORRUPTIONS}:{severity}")
    check_model(model)
    check_eval_mode(model)
    place = machine.device_of(model) if device is None else machine.find_device(device)
    identity, weights = identify(model, name), state_digest(model)
    dataset = open_samples(data, model, data_root)
    subset = choose_samples(dataset, n, indices)
    source = open_corrupted(dataset, corrupted, seed)
    ids, content = subset.indices, hashlib.sha256()

    with machine.placed(model, place), frozen(model), machine.strict_arithmetic(place), torch.no_grad():

        def predicted(images: Iterator[Tensor]) -> tuple[list[int], int]:
            """Classes, and how many the model knows."""
            found, classes = [], 0
            for start in range(0, len(ids), micro_batch_size):
                batch = [next(images) for _ in ids[start : start + micro_batch_size]]
                logits = model(torch.stack(batch).to(place))
                found += logits.argmax(1).tolist()
                classes = logits.shape[1]
            return found, classes

        def told(corruption: str, strength: int) -> Iterator[Tensor]:
            for i in ids:
                x = source.image(i, corruption, strength)
                content.update(x.numpy().tobytes())
                yield x

        labels = [dataset[i][1] for i in ids]
        clean, num_classes = predicted(dataset[i][0] for i in ids)
        check_labels(labels, num_classes, dataset.classes)
        broken: list[str | None] = [None] * len(ids)
        correct: dict[str, list[int]] = {corruption: [] for corruption in CORRUPTION_NAMES}
        for strength in range(1, severity + 1):
            for corruption in CORRUPTION_NAMES:
                found, _ = predicted(told(corruption, strength))
                right = [a == b for a, b in zip(found, labels, strict=True)]
                correct[corruption].append(sum(right))
                for j, good in enumerate(right):
                    if not good and broken[j] is None and clean[j] == labels[j]:
                        broken[j] = cell(corruption, strength)
                say(f"{corruption} {strength}: {sum(right)} of {len(ids)} right")
        fingerprint = machine.fingerprint(place, micro_batch_size)

    samples = [
        {
            "id": i,
            "label": label,
            "predicted": answer,
            "robust": answer == label and by is None,
            "broken_by": None if by is None else {"attack": by, "target": None, "restart": 0, "iteration": 0},
        }
        for i, label, answer, by in zip(ids, labels, clean, broken, strict=True)
    ]
    evidence = Evidence.build(
        model=identity.described(weights),
        threat_model=threat_model,
        protocol=make_protocol(CORRUPTIONS, threat_model, num_classes).to_json(),
        dataset={
            "id": dataset.key,
            "split": dataset.split,
            "subset": subset.id,
            "num_classes": num_classes,
            "image_shape": list(dataset.image_shape),
            "indices": ids,
            "digest": subset.digest,
            **({} if dataset.transform is None else {"transform": dataset.transform}),
            **({"classes": list(dataset.classes)} if is_own(dataset.key) else {}),
        },
        seed=seed,
        micro_batch_size=micro_batch_size,
        samples=samples,
        passes={"forward": len(ids) * (1 + severity * len(CORRUPTION_NAMES)), "backward": 0},
        run={
            "started": started.isoformat(timespec="seconds"),
            "wall_seconds": round(time.monotonic() - clock, 3),
            "device": str(place),
            "threads": torch.get_num_threads(),
            "workers": 1,
            "fingerprint": fingerprint,
            "versions": machine.versions(),
        },
        corruptions={"source": source.source, "digest": content.hexdigest(), "correct": correct},
    )
    if out is not None:
        write_evidence(evidence, Path(out))
    return evidence
