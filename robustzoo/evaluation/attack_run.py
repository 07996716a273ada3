"""Attack some images outside of an evaluation, and say which of them withstood."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from robustzoo.evaluation.identity import weights_hash
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.workers import ModelFolder, Work, run_share, run_shares


def robust_ids(
    model: nn.Module, work: Work, ids: Sequence[int], workers: int, reporter: Reporter
) -> list[int]:
    """Those of `ids` that the model classifies correctly, unattacked and under the work's protocol;
    ascending.

    Args:
        model: frozen and on the work's device.
        workers: processes; with more than one the model comes from its folder, or must be picklable.
    """
    if workers == 1 or len(ids) == 1:
        results = run_share(model, work, ids, lambda message: reporter.update(**message))
    else:
        sha256 = weights_hash(model)
        results = run_shares(
            model if sha256 is None else ModelFolder(Path(model.folder), sha256),
            work,
            ids,
            min(workers, len(ids)),
            lambda number, message: reporter.update(**message, worker=number),
        )
    return [result.id for result in results if result.robust]
