"""evaluate(): attack a model on fixed images and say, image by image and with proof, what it withstood."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.protocols import RANDOM_MODELS
from robustzoo.cards.evidence import Evidence, EvidenceError
from robustzoo.cards.signs import masking_warning
from robustzoo.data import DataError, Subset
from robustzoo.evaluation import machine, micro_batch
from robustzoo.evaluation.arguments import (
    check_flag,
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
from robustzoo.evaluation.attack_run import attack_all
from robustzoo.evaluation.cost import cost_line, passes_at_most
from robustzoo.evaluation.engine import Forwards, Work, check_precision
from robustzoo.evaluation.files import (
    evidence_path,
    refuse_to_replace,
    reserved,
    with_witnesses,
    write_evidence,
)
from robustzoo.evaluation.forward_guards import check_forward, check_micro_batch
from robustzoo.evaluation.guards import (
    GuardError,
    check_eval_mode,
    check_labels,
    outputs_note,
    probe_images,
    read_probe,
)
from robustzoo.evaluation.journal import WAY_OUT, Journal, stored_key
from robustzoo.evaluation.ledger import Ledger
from robustzoo.evaluation.prepare import choose_samples, identify, open_samples, state_digest, weights_hash
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.shards import Shard
from robustzoo.evaluation.terms import (
    carried_from,
    evidence_of,
    journal_key,
    require_same_answers,
    require_same_but_epsilon,
    terms_of,
)
from robustzoo.evaluation.witnessing import BORDERLINE
from robustzoo.evaluation.workers import refuse_in_worker
from robustzoo.registry import ThreatModel

__all__ = ["cost_line", "evaluate", "passes_at_most", "weights_hash"]


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
    precision: str = "float32",
    compiled: bool = False,
    shard: str | Shard | None = None,
    restart: bool = False,
    smaller: Evidence | None = None,
) -> Evidence:
    """Clean and robust accuracy of `model`, as Evidence: verdicts per image, counts, intervals, witnesses.

    At one micro-batch size the result does not depend on the order, number or grouping of the images, nor on
    workers, shards or interruptions. On the CPU each process computes with one thread (restored afterwards),
    so that it does not depend on the number of cores either.

    With `out`, whatever is found is kept at once in a journal beside the Evidence. An evaluation that was
    interrupted, even killed, goes on from there when it is called again, and gives the same Evidence. One
    that is finished there is read, once the model has answered its images and witnesses as it did then
    (unless it is random), and not computed again.

    Args:
        model: any module from pixels x: (B, C, H, W) in [0, 1] to logits (B, K), in eval mode. It is left as
            it was.
        data: a dataset name, a folder, a torch Dataset or a pair of tensors: see `samples.open_samples`.
        threat_model: for example "linf:8/255"; default: the model's own `.threat_model`.
        protocol: see `robustzoo.attacks.protocols.protocol`.
        n: evaluate a fixed random subset of this many images. Default: all.
        indices: evaluate these positions of the dataset instead, given in any order.
        seed: of every draw of the attacks; recorded.
        micro_batch_size: images a forward pass, one shape for the whole run; recorded, since the last bits of
            float32 results depend on it. Default: found by trial on a GPU, 64 on the CPU and in a shard, or
            the number of images where that is smaller. A larger one than there are images is filled up with
            padding. Where memory runs out it is halved, and the images concerned name their smaller shape.
        workers: processes that share the images, this one among them, on device "cuda" each on the next GPU.
            The others import the calling script anew, so a script must make the call under
            `if __name__ == "__main__":`.
        device: where to compute; default: where the model is.
        out: folder in which `evidence/<protocol>.<dataset>-<split>-<subset>.json` and its
            `.witness.safetensors` are written, atomically, after everything has succeeded. A file of that
            name is replaced by the same evaluation alone, and one evaluation at a time writes there.
        data_root: folder of a named dataset's files.
        name: what the Evidence calls the model; default: its registry name (with the hash behind it where
            the weights are not the published ones), or its class.
        progress: True shows it on standard error, False is silent, a function gets each message as a dict.
        precision: in which the attacks search: "float32", "tf32" (a GPU's) or "bf16". What is found counts
            once strict float32 confirms it, and the search goes on where it does not; recorded.
        compiled: search through torch.compile; recorded. What counts is decided by the model as it is.
        shard: "i/n" evaluates every n-th image from the i-th on, in the folder `out/shard-i-of-n`; its
            Evidence is a part, to be merged by `merging.merge`.
        restart: compute anew: discard the journal that is there, and replace the finished result.
        smaller: the Evidence of the same evaluation at a smaller epsilon, with its witnesses: what it broke
            is broken here, and is not attacked again.

    Warns:
        EvaluationWarning (with progress=False; else among the messages): zero gradients, which the Evidence
            counts under `run.zero_gradients`, or weights that are not the published ones of their name.

    Returns:
        Evidence, with the attribute `witness_set` (Witnesses: a point that fools the model for each image
        that was classified correctly and broken).

    Raises:
        GuardError: the model would give a meaningless number, an argument is not what is expected, or `out`
            holds another evaluation's result or journal under the same file name, or is being written by
            another run.
        NonFiniteLogits: the model answers NaN or infinity for an image, clean or attacked.
        DataError, MissingData, ThreatModelError, ProtocolError: what was asked for does not exist.
        WorkerError: a worker process failed. On any error no Evidence is written; the journal stays.
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
    for label, flag in (("compiled", compiled), ("restart", restart)):
        check_flag(label, flag)
    shard = None if shard is None else Shard.parse(shard)
    check_eval_mode(model)
    device = machine.device_of(model) if device is None else machine.find_device(device)
    check_placed(model, device)
    check_precision(precision, device)
    if smaller is not None and not isinstance(smaller, Evidence):
        raise GuardError(f"smaller is a {type(smaller).__name__}; expected an Evidence, or None")
    carried = carried_from(smaller, threat_model)
    if out is not None:
        out = Path(out) if shard is None else shard.folder(Path(out))
        check_writable(out)
    started, start = datetime.datetime.now(datetime.timezone.utc), time.perf_counter()
    with (
        reserved(out),
        Reporter(progress) as reporter,
        machine.strict_arithmetic(device),
        machine.placed(model, device),
        frozen(model),
    ):
        weights = state_digest(model)  # before the first forward, which may count itself in a buffer
        dataset = open_samples(data, model, data_root)
        reporter.say_all(dataset)
        probe = probe_images(read_probe(dataset)).to(device)
        num_classes = check_forward(
            model, probe, gradients=protocol != "square", random=protocol == RANDOM_MODELS
        )
        if dataset.labels is not None:  # known without reading the images; else checked as they are read
            check_labels(dataset.labels, num_classes, dataset.classes)
        if (note := outputs_note(dataset.classes, num_classes)) is not None:
            reporter.say(note)
        work = Work(
            dataset, protocol, threat_model, num_classes, int(seed), 1, str(device), precision, compiled
        )
        attacks = [attack.name for attack in work.protocol.attacks]  # refused before the images are read
        subset = choose_samples(dataset, n, indices)
        ids = subset.indices if shard is None else shard.part(subset.indices)
        identity = identify(model, name)
        if identity.warning is not None:
            reporter.warn(identity.warning)
        path = None if out is None else evidence_path(out, protocol, dataset, subset)
        place = None if path is None else path.with_suffix(".journal")
        workers = min(int(workers), len(ids))
        size = micro_batch_size
        if size is None:
            size = _known_micro_batch(smaller, *((None, None) if restart else (path, place)))
        if size is None and shard is not None:
            size = min(micro_batch.DEFAULT, len(subset))  # a trial on each shard's machine could differ
        work, measured = _sized(work, size, workers, model, subset, reporter)
        first = [dataset[i][0] for i in subset.indices[: work.micro_batch_size]]
        check_micro_batch(
            model,
            first,
            work.micro_batch_size,
            device,
            gradients=protocol != "square",
            random=protocol == RANDOM_MODELS,
        )
        described = {"name": identity.name, "sha256": identity.sha256}
        if identity.sha256 is None:  # so that no other weights of that name pass for these
            described["weights"] = weights
        terms = terms_of(described, work, subset, weights, shard, smaller)
        answering = protocol != RANDOM_MODELS  # those answer anew each time
        if smaller is not None:
            require_same_but_epsilon(smaller, terms)
            if answering:
                require_same_answers(smaller, model, dataset, device)
        if path is not None:  # refused before the attack, whose hours would be lost
            refuse_to_replace(path, terms)
            if path.exists() and not restart:
                finished = with_witnesses(path)
                if answering:
                    require_same_answers(finished, model, dataset, device)
                reporter.say(
                    f"{path} holds this evaluation already, and it was read; restart=True, on the command "
                    "line --restart, computes it anew"
                )
                return finished
        fingerprint = machine.fingerprint(device, work.micro_batch_size)
        ledger = Ledger(ids, attacks, work.micro_batch_size, carried)
        with Journal(place, journal_key(terms, weights, fingerprint), restart=restart) as journal:
            _restore(ledger, journal)
            journal.findings.clear()  # the ledger has them
            if journal.sessions:
                reporter.say(
                    f"going on from {place}: {len(ids) - sum(ledger.left)} of {len(ids)} images done"
                )
            if not ledger.finished:
                line = cost_line(model, dataset[ids[0]][0], work, sum(ledger.left), workers, measured)
                try:
                    reporter.say(line, "cost")
                    attack_all(model, work, ledger, workers, reporter, journal.append, measured)
                except BaseException as error:
                    if journal.keeps:
                        reporter.say(_kept(journal))
                    elif isinstance(error, KeyboardInterrupt):
                        reporter.say(
                            "nothing was kept, for there is no `out` folder"
                            if place is None
                            else "nothing was found yet, so nothing was kept"
                        )
                    raise
            masked = masking_warning(ledger.blind, ledger.correct)
            if masked is not None:
                reporter.warn(masked)
            run = {
                "started": started.isoformat(timespec="seconds"),
                "wall_seconds": round(time.perf_counter() - start + journal.elapsed, 3),
                **({"sessions": 1 + journal.sessions} if journal.sessions else {}),
                "device": str(device),
                "threads": fingerprint["threads"],
                "workers": workers,
                "fingerprint": fingerprint,
                "versions": machine.versions(),
                "zero_gradients": dict(sorted(ledger.blind.items())),
            }
            evidence = evidence_of(terms, ledger, run)
            _note_borderline(evidence, reporter)
            if out is not None:
                try:
                    write_evidence(evidence, out)
                except BaseException:  # of a full disk, for example
                    if journal.keeps:
                        reporter.say(_kept(journal))
                    raise
            journal.remove()
        return evidence


def _restore(ledger: Ledger, journal: Journal) -> None:
    try:
        ledger.restore(journal.findings)
    except (ValueError, TypeError, LookupError) as error:
        raise GuardError(
            f"{journal.path} would be continued, but what it holds is not of this evaluation: {error}. "
            f"{WAY_OUT}"
        ) from error


def _kept(journal: Journal) -> str:
    return f"what was found is kept in {journal.path}; the same command goes on from there"


def _known_micro_batch(smaller: Evidence | None, finished: Path | None, journal: Path | None) -> int | None:
    """The micro-batch of what this evaluation goes on from, if anything: a trial could give another one."""
    if smaller is not None:
        return smaller.doc["micro_batch_size"]
    if finished is not None and finished.is_file():
        with suppress(EvidenceError):  # which is said where it would be replaced
            return Evidence.load(finished).doc["micro_batch_size"]
    key = None if journal is None else stored_key(journal)
    size = None if key is None else key.get("micro_batch_size")
    return size if isinstance(size, int) and size > 0 else None


def _sized(
    work: Work, size: int | None, workers: int, model: nn.Module, subset: Subset, reporter: Reporter
) -> tuple[Work, tuple[float, float]]:
    """The work at the micro-batch that was asked for, or else found by trial, as far as it fits into the
    memory that the workers share; and the seconds of a forward and a backward of it."""
    device, image = torch.device(work.device), work.dataset[subset.indices[0]][0]
    forwards = Forwards(model, work.precision, work.compiled, device)
    gradients = passes_at_most(work.protocol)[1] > 0
    with forwards.searching():
        if size is None:
            size = micro_batch.find(forwards.search, image, len(subset), device)
        fitting = micro_batch.within_memory(
            forwards.judge, image, int(size), device, workers, gradients=gradients
        )
        fitting, measured = micro_batch.fit(forwards.search, image, fitting, device, gradients=gradients)
    if fitting < size:
        reporter.say(f"micro-batch {size} does not fit into the memory of {device}: {fitting} is used")
    if fitting > len(subset):
        reporter.say(
            f"micro-batch {fitting} is larger than the {len(subset)} images: the rest of each batch is "
            "padding, which costs time and changes nothing"
        )
    return replace(work, micro_batch_size=fitting), measured


def _note_borderline(evidence: Evidence, reporter: Reporter) -> None:
    witnesses = evidence.witness_set
    ids = [] if witnesses is None else witnesses.ids[witnesses.margins < BORDERLINE].tolist()
    if ids:
        reporter.say(
            f"{len(ids)} broken images are borderline (logits within 1e-4 of a tie, ids "
            f"{', '.join(map(str, ids[:10]))}): elsewhere their verdict may differ"
        )
