"""evaluate(): attack a model on fixed images and say, image by image and with proof, what it withstood.

attack() is the same of one batch, whose adversarial images it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from robustzoo.cards.evidence import Evidence, EvidenceError, read_evidence
from robustzoo.cards.signs import masking_warning
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.checks import check_arguments
from robustzoo.evaluation.journal import WAY_OUT, Journal, stored_key
from robustzoo.evaluation.ledger import Ledger
from robustzoo.evaluation.prepare import Prepared, ask, identify, prepare, state_digest
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.shards import Shard
from robustzoo.evaluation.terms import (
    check_writable,
    evidence_of,
    journal_key,
    place_of,
    refuse_to_replace,
    require_same_but_epsilon,
    reserved,
    terms_of,
    with_witnesses,
    write_evidence,
)
from robustzoo.evaluation.witnessing import BORDERLINE, require_same_answers, successes_of
from robustzoo.evaluation.workers import attack_all, refuse_in_worker
from robustzoo.registry import ThreatModel


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
        data: a dataset name, a folder, a torch Dataset or a pair of tensors: see `data.samples.open_samples`.
        threat_model: for example "linf:8/255"; default: the model's own `.threat_model`.
        protocol: see `robustzoo.attacks.protocols.protocol`.
        n: evaluate a fixed random subset of this many images. Default: all.
        indices: evaluate these positions of the dataset instead, given in any order.
        seed: of every draw of the attacks; recorded.
        micro_batch_size: images a forward pass, one shape for the whole run; recorded, since the last bits of
            float32 results depend on it. Default: by a rule of the network's size, often 64 on a CPU; the
            number of images where that is smaller. A larger one than there are images is filled up with
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
            Evidence is a part, to be merged by `shards.merge`.
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
        RobustzooError: the model would give a meaningless number, what was asked for does not exist or is not
            what is expected, `out` holds another evaluation's result or journal under the same file name or
            is being written by another run, or a worker process failed.
        NonFiniteLogits: the model answers NaN or infinity for an image, clean or attacked.
        MissingData: the data's files are not there.
    On any error no Evidence is written; the journal stays.
    """
    # ---- what was asked: refused before anything is read, computed or written -----------------------------
    refuse_in_worker()
    asked = ask(
        model,
        threat_model,
        protocol,
        n=n,
        indices=indices,
        seed=seed,
        micro_batch_size=micro_batch_size,
        workers=workers,
        device=device,
        data_root=data_root,
        precision=precision,
        compiled=compiled,
    )
    check_arguments(name=name, progress=progress, out=out, restart=restart, smaller=smaller)
    part = None if shard is None else Shard.parse(shard)
    carried = successes_of(smaller, asked.threat_model)
    if out is not None:
        out = Path(out) if part is None else part.folder(Path(out))
        check_writable(out)
    weights = state_digest(model)  # before the first forward, which may count itself in a buffer
    identity = identify(model, name)
    with (
        reserved(out),
        Reporter(progress) as reporter,
        prepare(model, data, asked, reporter, identity.sha256) as ready,
    ):
        # ---- which evaluation this is, and what it goes on from -------------------------------------------
        ids = ready.subset.indices if part is None else part.part(ready.subset.indices)
        workers = min(int(workers), len(ids))
        if identity.warning is not None:
            reporter.warn(identity.warning)
        terms = terms_of(identity.described(weights), ready, smaller)
        if part is not None:
            terms["shard"] = {"index": part.index, "count": part.count, "weights": weights}
        path = None if out is None else place_of(terms, out)
        size = micro_batch_size or _micro_batch_before(smaller, None if restart else path)
        ready = ready.sized(size, workers=workers, reporter=reporter)
        terms["micro_batch_size"] = ready.work.micro_batch_size
        if smaller is not None:
            require_same_but_epsilon(smaller, terms)
            _require_same_answers(smaller, ready)
        if path is not None:
            refuse_to_replace(path, terms)  # before the attack, whose hours would be lost
            if path.exists() and not restart:
                return _finished(path, ready, reporter)

        # ---- the attack, from where the journal ends ------------------------------------------------------
        ledger = Ledger(ids, ready.work.attacks, ready.work.micro_batch_size, carried)
        key = journal_key(terms, weights, ready.fingerprint)
        with Journal(None if path is None else path.with_suffix(".journal"), key, restart=restart) as journal:
            _restore(ledger, journal, reporter)
            if not ledger.finished:
                with _telling_what_is_kept(journal, reporter):
                    attack_all(ready, ledger, workers, reporter, journal.append)

            # ---- the Evidence -----------------------------------------------------------------------------
            if (masked := masking_warning(ledger.zero_gradients, ledger.correct)) is not None:
                reporter.warn(masked)
            evidence = evidence_of(terms, ledger, ready, workers, journal)
            _note_borderline(evidence, reporter)
            if out is not None:
                with _telling_what_is_kept(journal, reporter, of_interrupts=False):
                    write_evidence(evidence, out)
            journal.remove()
        return evidence


class Attacked(NamedTuple):
    """images: float32 (N, C, H, W) in [0, 1] on the CPU: where the attack succeeded its point, else the image
    as it was. succeeded: bool (N,), the model is wrong at that image, for some even unattacked."""

    images: Tensor
    succeeded: Tensor


def attack(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    threat_model: str | ThreatModel | None = None,
    protocol: str = "apgd-ce",
    **options: Any,
) -> Attacked:
    """Look for a point within the threat model of each image that fools the model.

    Each returned point is in the ball and in [0, 1], and fools the model by a forward of its own. Verdicts
    are those of `evaluate` on the same images, which makes Evidence of them.

    Args:
        model: from pixels (N, C, H, W) in [0, 1] to logits (N, K), in eval mode.
        x, y: images, and their labels, integers (N,).
        threat_model: such as "linf:8/255"; default: the model's own. protocol: as of `evaluate`.
        options: others of `evaluate`: seed, micro_batch_size, workers, device, ...

    Raises: as `evaluate`.
    """
    evidence = evaluate(model, (x, y), threat_model, protocol, **{"progress": False, **options})
    images = x.detach().to("cpu", torch.float32, copy=True)
    found = evidence.witness_set
    if found is not None and len(found):
        images[torch.from_numpy(found.ids)] = torch.from_numpy(found.pixels)
    return Attacked(images, torch.tensor([not verdict.robust for verdict in evidence.verdicts]))


def _micro_batch_before(smaller: Evidence | None, finished: Path | None) -> int | None:
    """The micro-batch of what this evaluation goes on from, if anything: its user may have chosen it."""
    if smaller is not None:
        return smaller.doc["micro_batch_size"]
    if finished is None:
        return None
    if finished.is_file():
        with suppress(EvidenceError):  # which is said where it would be replaced
            return read_evidence(finished).doc["micro_batch_size"]
    key = stored_key(finished.with_suffix(".journal"))
    size = None if key is None else key.get("micro_batch_size")
    return size if isinstance(size, int) and size > 0 else None


def _require_same_answers(evidence: Evidence, ready: Prepared) -> None:
    if ready.asked.protocol.draws == 1:  # random models answer anew each time
        require_same_answers(evidence, ready.model, ready.dataset, ready.asked.device)


def _finished(path: Path, ready: Prepared, reporter: Reporter) -> Evidence:
    found = with_witnesses(path)
    _require_same_answers(found, ready)
    reporter.say(
        f"{path} holds this evaluation already, and it was read; restart=True, on the command "
        "line --restart, computes it anew"
    )
    return found


def _restore(ledger: Ledger, journal: Journal, reporter: Reporter) -> None:
    """Enter what the journal holds into the ledger, which then has it alone."""
    try:
        ledger.restore(journal.findings)
    except (ValueError, TypeError, LookupError) as error:
        raise RobustzooError(
            f"{journal.path} would be continued, but what it holds is not of this evaluation: {error}. "
            f"{WAY_OUT}"
        ) from error
    journal.findings.clear()
    if journal.sessions:
        reporter.say(
            f"going on from {journal.path}: {len(ledger.ids) - sum(ledger.left)} of {len(ledger.ids)} images "
            "done"
        )


@contextmanager
def _telling_what_is_kept(
    journal: Journal, reporter: Reporter, *, of_interrupts: bool = True
) -> Iterator[None]:
    """Where the block fails (or is interrupted, or the disk is full), say what is kept, and where."""
    try:
        yield
    except BaseException as error:
        if journal.keeps:
            reporter.say(f"what was found is kept in {journal.path}; the same command goes on from there")
        elif of_interrupts and isinstance(error, KeyboardInterrupt):
            reporter.say(
                "nothing was kept, for there is no `out` folder"
                if journal.path is None
                else "nothing was found yet, so nothing was kept"
            )
        raise


def _note_borderline(evidence: Evidence, reporter: Reporter) -> None:
    witnesses = evidence.witness_set
    ids = [] if witnesses is None else witnesses.ids[witnesses.margins < BORDERLINE].tolist()
    if ids:
        reporter.say(
            f"{len(ids)} broken images are borderline (logits within 1e-4 of a tie, ids "
            f"{', '.join(map(str, ids[:10]))}): elsewhere their verdict may differ"
        )
