"""evaluate(): attack a model on fixed images and say, image by image and with proof, what it withstood."""

from __future__ import annotations

import datetime
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustzoo.attacks.autoattack import SampleResult
from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.protocols import RANDOM_MODELS, Protocol
from robustzoo.attacks.protocols import protocol as make_protocol
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data import DataError, Subset
from robustzoo.evaluation import machine
from robustzoo.evaluation.arguments import (
    check_model,
    check_name,
    check_path,
    check_placed,
    check_progress,
    check_protocol,
    check_seed,
    check_threat_model,
    check_whole,
    check_writable,
)
from robustzoo.evaluation.evidence_files import (
    evidence_path,
    refuse_to_replace,
    reserved,
    write_evidence,
)
from robustzoo.evaluation.guards import (
    check_eval_mode,
    check_forward,
    check_labels,
    masking_warning,
    probe_images,
    read_probe,
)
from robustzoo.evaluation.identity import identify, weights_hash
from robustzoo.evaluation.progress import Reporter, estimate
from robustzoo.evaluation.samples import choose_samples, open_samples
from robustzoo.evaluation.witnessing import Candidate, make_witnesses
from robustzoo.evaluation.workers import ModelFolder, Work, refuse_in_worker, run_share, run_shares
from robustzoo.registry import ThreatModel

# Large enough to keep one core busy on small images, small enough for a laptop at 224 pixels.
DEFAULT_MICRO_BATCH = 64


def evaluate(
    model: nn.Module,
    data: Any,
    threat_model: str | ThreatModel | None = None,
    protocol: str = "aa-standard",
    *,
    n: int | None = None,
    indices: Sequence[int] | None = None,
    seed: int = 0,
    micro_batch_size: int | None = None,
    workers: int = 1,
    device: str | torch.device | None = None,
    out: str | Path | None = None,
    data_root: str | Path | None = None,
    name: str | None = None,
    progress: bool | Callable[[dict], None] = True,
) -> Evidence:
    """Clean and robust accuracy of `model`, as Evidence: verdicts per image, counts, intervals, witnesses.

    At one micro-batch size the result does not depend on the order, number or grouping of the images, nor on
    `workers`. On the CPU each process computes with one thread (restored afterwards), so that it does not
    depend on the number of cores either.

    Args:
        model: any module from pixels x: (B, C, H, W) in [0, 1] to logits (B, K), in eval mode. It is left as
            it was.
        data: a dataset name, a folder, a torch Dataset or a pair of tensors: see `samples.open_samples`.
        threat_model: for example "linf:8/255"; default: the model's own `.threat_model`.
        protocol: see `robustzoo.attacks.autoattack.protocol`.
        n: evaluate a fixed random subset of this many images. Default: all.
        indices: evaluate these positions of the dataset instead, given in any order.
        seed: of every draw of the attacks; recorded.
        micro_batch_size: images a forward pass, one shape for the whole run; recorded, since the last bits of
            float32 results depend on it. Default: 64, or the number of images where that is smaller. A larger
            one than there are images is filled up with padding.
        workers: processes that share the images. Each of them imports the calling script anew, so a script
            must make the call under `if __name__ == "__main__":`.
        device: where to compute; default: where the model is.
        out: folder in which `evidence/<protocol>.<dataset>-<split>-<subset>.json` and its
            `.witness.safetensors` are written, atomically, after everything has succeeded. A file of that
            name is replaced by the same evaluation alone, and one evaluation at a time writes there.
        data_root: folder of a named dataset's files.
        name: what the Evidence calls the model; default: its registry name (with the hash behind it where
            the weights are not the published ones), or its class.
        progress: True shows it on standard error, False is silent, a function gets each message as a dict.

    Warns:
        EvaluationWarning (with progress=False; else among the messages): zero gradients, which the Evidence
            counts under `run.zero_gradients`, or weights that are not the published ones of their name.

    Returns:
        Evidence, with the attribute `witness_set` (Witnesses: a point that fools the model for each image
        that was classified correctly and broken).

    Raises:
        GuardError: the model would give a meaningless number, an argument is not what is expected, or `out`
            holds another evaluation's result under the same file name, or is being written by another run.
        NonFiniteLogits: the model answers NaN or infinity for an image, clean or attacked.
        DataError, MissingData, ThreatModelError, ProtocolError: what was asked for does not exist.
        WorkerError: a worker process failed. Nothing is written on any error.
    """
    refuse_in_worker()
    check_model(model)
    threat_model = check_threat_model(threat_model, model)
    check_protocol(protocol, threat_model)
    check_whole("n", n, 1, error=DataError)
    check_seed(seed, optional=False)
    check_whole("micro_batch_size", micro_batch_size, 1)
    check_whole("workers", workers, 1, optional=False)
    check_name(name)
    check_progress(progress)
    check_path("data_root", data_root)
    check_path("out", out)
    check_eval_mode(model)
    device = machine.device_of(model) if device is None else machine.find_device(device)
    check_placed(model, device)
    if out is not None:
        out = Path(out)
        check_writable(out)
    started, start = datetime.datetime.now(datetime.timezone.utc), time.perf_counter()
    with (
        reserved(out),
        Reporter(progress) as reporter,
        machine.strict_arithmetic(device),
        machine.placed(model, device),
        frozen(model),
    ):
        dataset = open_samples(data, model, data_root)
        probe = probe_images(read_probe(dataset)).to(device)
        num_classes = check_forward(
            model, probe, gradients=protocol != "square", random=protocol == RANDOM_MODELS
        )
        if dataset.labels is not None:  # known without reading the images; else checked as they are read
            check_labels(dataset.labels, num_classes)
        make_protocol(protocol, threat_model, num_classes)  # refused before the images are read
        subset = choose_samples(dataset, n, indices)
        size = min(DEFAULT_MICRO_BATCH, len(subset)) if micro_batch_size is None else int(micro_batch_size)
        if size > len(subset):
            reporter.say(
                f"micro-batch {size} is larger than the {len(subset)} images: the rest of each batch is "
                "padding, which costs time and changes nothing"
            )
        identity = identify(model, name)
        if identity.warning is not None:
            reporter.warn(identity.warning)
        workers = min(int(workers), len(subset))
        work = Work(dataset, protocol, threat_model, num_classes, int(seed), size, str(device))
        described = {"name": identity.name, "sha256": identity.sha256}
        terms = _terms(described, work, subset)
        if out is not None:  # refused before the attack, whose hours would be lost
            refuse_to_replace(evidence_path(out, work.protocol.name, terms["dataset"]), terms)
        reporter.say(cost_line(model, dataset[subset.indices[0]][0], work, len(subset), workers), "cost")
        results = _attack(model, work, subset, workers, reporter)
        witnesses = _witnesses(model, work, results, device, reporter)
        fingerprint = machine.fingerprint(device, size)
        blind = Counter(attack for result in results for attack in result.blind)
        masked = masking_warning(blind, sum(result.predicted == result.label for result in results))
        if masked is not None:
            reporter.warn(masked)
        run = {
            "started": started.isoformat(timespec="seconds"),
            "wall_seconds": round(time.perf_counter() - start, 3),
            "device": str(device),
            "threads": fingerprint["threads"],
            "workers": workers,
            "fingerprint": fingerprint,
            "versions": machine.versions(),
            "zero_gradients": dict(sorted(blind.items())),
        }
        evidence = _evidence(terms, results, run)
        evidence.witness_set = witnesses
        if out is not None:
            write_evidence(evidence, witnesses, out)
        return evidence


def cost_line(model: nn.Module, x: Tensor, work: Work, count: int, workers: int) -> str:
    """What the run costs at most, in passes and (from a short trial on `x: (C, H, W)`) in seconds."""
    forwards, backwards = passes_at_most(work.protocol)
    batch = x.expand(work.micro_batch_size, *x.shape).to(work.device)
    forward, backward = machine.seconds_per_pass(model, batch, gradients=backwards > 0)
    seconds = (forwards * forward + backwards * backward) * count / work.micro_batch_size / workers
    return (
        f"{work.protocol.name} on {count} images: at most {count * forwards:,} forwards and "
        f"{count * backwards:,} backwards, {estimate(seconds)} if all stay robust "
        f"({workers} process{'es' if workers > 1 else ''}, micro-batch {work.micro_batch_size}, "
        f"{work.device})"
    )


def passes_at_most(protocol: Protocol) -> tuple[int, int]:
    """(forwards, backwards) that a sample costs at most.

    One forward for the clean image and one for the second look at the point that breaks it (each for every
    draw of a random model), and what every member needs: see `Member.passes`.
    """
    draws = max((member.draws for member in protocol.members), default=1)
    passes = [member.passes for member in protocol.members]
    return 2 * draws + sum(forward for forward, _ in passes), sum(backward for _, backward in passes)


def _attack(
    model: nn.Module, work: Work, subset: Subset, workers: int, reporter: Reporter
) -> list[SampleResult]:
    if workers == 1:
        return run_share(model, work, subset.indices, lambda message: reporter.update(**message))
    sha256 = weights_hash(model)
    source = model if sha256 is None else ModelFolder(Path(model.folder), sha256)
    return run_shares(
        source,
        work,
        subset.indices,
        workers,
        lambda number, message: reporter.update(**message, worker=number),
    )


def _witnesses(
    model: nn.Module, work: Work, results: list[SampleResult], device: torch.device, reporter: Reporter
) -> Witnesses:
    found = [Candidate(r.id, r.label, r.witness) for r in results if r.broken_by is not None]
    made = make_witnesses(
        model,
        work.dataset,
        found,
        work.threat_model,
        work.micro_batch_size,
        device,
        lambda done: reporter.update("witnesses", done, len(found)),
    )
    borderline = [w.id for w in made if w.borderline]
    if borderline:
        reporter.say(
            f"{len(borderline)} broken images are borderline (logits within 1e-4 of a tie, ids "
            f"{', '.join(map(str, borderline[:10]))}): elsewhere their verdict may differ"
        )
    shape = (0, *work.dataset.image_shape)
    return Witnesses(
        np.array([w.id for w in made], np.int64),
        np.stack([w.point.numpy() for w in made]) if made else np.empty(shape, np.float32),
        np.array([w.lead for w in made], np.float32),
    )


def _terms(model: dict[str, Any], work: Work, subset: Subset) -> dict[str, Any]:
    """Which evaluation this is, as Evidence states it: known before the attack."""
    dataset = work.dataset
    return {
        "model": model,
        "threat_model": {"norm": work.threat_model.norm, "epsilon": work.threat_model.epsilon_text},
        "protocol": work.protocol.to_json(),
        "dataset": {
            "id": dataset.key,
            "split": dataset.split,
            "subset": subset.id,
            "num_classes": work.num_classes,
            "image_shape": list(dataset.image_shape),
            "indices": subset.indices,
            "digest": subset.digest,
        },
        "seed": work.seed,
        "micro_batch_size": work.micro_batch_size,
    }


def _evidence(terms: dict[str, Any], results: list[SampleResult], run: dict[str, Any]) -> Evidence:
    threat = terms["threat_model"]
    return Evidence.build(
        **{**terms, "threat_model": f"{threat['norm']}:{threat['epsilon']}"},
        samples=[_sample(result) for result in results],
        passes={
            "forward": sum(result.forwards for result in results),
            "backward": sum(result.backwards for result in results),
        },
        run=run,
    )


def _sample(result: SampleResult) -> dict[str, Any]:
    by = result.broken_by
    return {
        "id": int(result.id),
        "label": int(result.label),
        "predicted": int(result.predicted),
        "robust": bool(result.robust),
        "broken_by": None
        if by is None
        else {"attack": by.attack, "target": by.target, "restart": by.restart, "iteration": by.iteration},
    }
