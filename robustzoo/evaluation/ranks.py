"""One evaluation under a launcher (torchrun, deepspeed): each rank does a shard, rank 0 merges them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustzoo import folder_lock
from robustzoo.cards.evidence import Evidence
from robustzoo.evaluation.evaluator import evaluate
from robustzoo.evaluation.evidence_files import place_of, reserved, with_witnesses, write_evidence
from robustzoo.evaluation.guards import GuardError
from robustzoo.evaluation.merging import join
from robustzoo.evaluation.sharding import Rank, Shard

_POLL_SECONDS = 0.5


def evaluate_on_rank(
    rank: Rank,
    *arguments: Any,
    out: str | Path | None,
    progress: bool | Callable[[dict], None] = True,
    **options: Any,
) -> Evidence | None:
    """`evaluate` on this rank's share of the images; all ranks must be called alike.

    Ranks speak through `out` alone, so that nothing but a common folder is needed. A shard that an earlier
    launch finished is not computed again. What a rank leaves behind when it dies is found by the next launch.

    Args:
        rank: this process among the launcher's.
        arguments, options: as of `evaluate`.
        out: a folder that all ranks see.
        progress: as of `evaluate`, on rank 0; the others are silent.

    Returns:
        The whole Evidence on rank 0, None on the others.

    Raises:
        GuardError: no `out`, a shard asked for beside the ranks', or as `evaluate`.
    """
    if out is None:
        raise GuardError(
            f"{rank.count} ranks would each keep a part of the result in memory; expected a folder that all "
            "of them see: out=..., on the command line --out DIR"
        )
    if options.pop("shard", None) is not None:
        raise GuardError("a shard and ranks were both given; expected --shard in single jobs, or a launcher")
    out = Path(out)
    mine = evaluate(
        *arguments,
        out=out,
        shard=rank.shard,
        reuse=True,
        progress=progress if rank.index == 0 else False,
        **options,
    )
    if rank.index > 0:
        return None
    shards = [Shard(i + 1, rank.count).folder(out) for i in range(rank.count)]
    paths = [place_of(mine, shard) for shard in shards]
    # A rank that fails makes the launcher end this one too, so that the wait has an end.
    while not all(map(_ready, paths)):
        time.sleep(_POLL_SECONDS)
    whole = join([with_witnesses(path) for path in paths], paths)
    with reserved(out):
        write_evidence(whole, out)
    for shard in shards:
        shutil.rmtree(shard, ignore_errors=True)
    return whole


def _ready(path: Path) -> bool:
    """Whether the shard's Evidence is there, and the rank that wrote it has left the folder."""
    if not path.exists():
        return False
    try:
        held = folder_lock.hold(path.parent)
    except folder_lock.FolderInUse:
        return False
    if held is not None:
        held.close()
    return True
