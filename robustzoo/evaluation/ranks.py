"""One evaluation under a launcher (torchrun, deepspeed): each rank does a shard, rank 0 merges them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from robustzoo.cards.evidence import Evidence
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.files import place_of, reserved, with_witnesses, write_evidence
from robustzoo.evaluation.guards import GuardError
from robustzoo.evaluation.merging import join
from robustzoo.evaluation.shards import Rank, Shard

_POLL_SECONDS = 0.5


def evaluate_on_rank(
    rank: Rank | None,
    *arguments: Any,
    out: str | Path | None = None,
    progress: bool | Callable[[dict], None] = True,
    **options: Any,
) -> tuple[Evidence, Evidence | None]:
    """`evaluate` on this rank's share of the images; all ranks must be called alike.

    Ranks speak through `out` alone, so that nothing but a common folder is needed. Their shards stay there:
    one that an earlier launch finished is not computed again, one that it began goes on.

    Args:
        rank: this process among the launcher's; None is `evaluate` itself.
        arguments, options: as of `evaluate`.
        out: a folder that all ranks see.
        progress: as of `evaluate`, on rank 0; the others are silent.

    Returns:
        This rank's own Evidence, and the whole Evidence on rank 0 (and without ranks), None on the others.

    Raises:
        GuardError: no `out`, a shard asked for beside the ranks', `restart` where a finished part lies, or as
            `evaluate`.
    """
    if rank is None:
        found = evaluate(*arguments, out=out, progress=progress, **options)
        return found, found
    if out is None:
        raise GuardError(
            f"{rank.count} ranks would each keep a part of the result in memory; expected a folder that all "
            "of them see: out=..., on the command line --out DIR"
        )
    if options.get("shard") is not None:
        raise GuardError("a shard and ranks were both given; expected --shard in single jobs, or a launcher")
    out, shown = Path(out), progress if rank.index == 0 else False
    place = rank.shard.folder(out)
    if options.get("restart") and any((place / "evidence").glob("*.json")):
        raise GuardError(
            f"{place} holds a finished part, and ranks cannot tell the parts of this launch from older ones: "
            f"delete the folders {out}/shard-*-of-{rank.count} first, or choose another folder"
        )
    options = {**options, "shard": rank.shard}
    mine = evaluate(*arguments, out=out, progress=shown, **options)
    if rank.index > 0:
        return mine, None
    paths = [place_of(mine, Shard(i + 1, rank.count).folder(out)) for i in range(rank.count)]
    # A rank that fails makes the launcher end this one too, so that the wait has an end.
    while not all(path.exists() for path in paths):
        time.sleep(_POLL_SECONDS)
    whole = join([with_witnesses(path) for path in paths], paths)
    with reserved(out):
        write_evidence(whole, out)
    return mine, whole
