"""Attack what a ledger has left, here or in worker processes, with progress; also outside of evaluate()."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torch import nn

from robustzoo.cards.signs import masking_warning
from robustzoo.evaluation.cost import Pace, passes_at_most, seconds_at_most
from robustzoo.evaluation.engine import ModelFolder, Work
from robustzoo.evaluation.ledger import Finding, Ledger
from robustzoo.evaluation.prepare import weights_hash
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.workers import run_here, run_in_workers


def attack_all(
    model: nn.Module,
    work: Work,
    ledger: Ledger,
    workers: int,
    reporter: Reporter,
    keep: Callable[[list[Finding]], None] | None = None,
    measured: tuple[float, float] | None = None,
) -> None:
    """Do all that the ledger has left.

    Args:
        model: frozen and on the work's device.
        workers: processes, this one among them; with more than one the model has a folder that the others can
            read, or pickle can send it.
        keep: called with every batch of findings before the ledger has it.
        measured: seconds of a forward and of a backward of a micro-batch, for what is said after the clean
            pass.
    """
    after_clean = None
    if measured is not None:
        passes = passes_at_most(work.protocol)
        after_clean = lambda count: seconds_at_most(passes, count, work, workers, measured)  # noqa: E731
    pace = Pace(ledger, work.protocol, reporter, work.micro_batch_size * workers, after_clean)

    def record(findings: list[Finding]) -> None:
        if keep is not None:
            keep(findings)
        for found in findings:
            ledger.add(found)
        pace.show(findings)

    if workers == 1:
        run_here(model, work, ledger, record)
        return
    sha256 = weights_hash(model)
    copies = model if sha256 is None else ModelFolder(Path(model.folder), sha256)
    run_in_workers(model, copies, work, ledger, workers, record)


def attacked(
    model: nn.Module, work: Work, ids: Sequence[int], workers: int, reporter: Reporter
) -> tuple[list[int], str | None]:
    """Those of `ids` that the model classifies correctly, unattacked and under the work's protocol,
    ascending; and the warning about zero gradients, where there were many.

    Args:
        model, workers: as of `attack_all`.
    """
    ledger = Ledger(ids, [attack.name for attack in work.protocol.attacks], work.micro_batch_size)
    attack_all(model, work, ledger, min(workers, max(len(ids), 1)), reporter)
    robust = sorted(sample["id"] for sample in ledger.samples() if sample["robust"])
    return robust, masking_warning(ledger.blind, ledger.correct)


def robust_ids(
    model: nn.Module, work: Work, ids: Sequence[int], workers: int, reporter: Reporter
) -> list[int]:
    """The first that `attacked` gives."""
    return attacked(model, work, ids, workers, reporter)[0]
