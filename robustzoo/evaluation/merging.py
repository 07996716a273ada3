"""Shards of one evaluation become its Evidence: the bytes of a single run, `run` aside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.witnesses import Witnesses
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.arguments import check_writable
from robustzoo.evaluation.files import (
    differing_terms,
    reserved,
    with_witnesses,
    write_evidence,
)
from robustzoo.evaluation.guards import GuardError
from robustzoo.registry import ThreatModel

_OPTIONAL = ("search", "smaller_epsilons")


class MergeError(GuardError):
    """Shards that are no whole evaluation; the message names what is missing or differs."""


def merge(folders: Iterable[str | Path], out: str | Path) -> list[Path]:
    """Merge the shards found in `folders` and write each evaluation's Evidence and witnesses to `out`.

    Args:
        folders: folders that hold shards: the `out` of `evaluate(..., shard="i/n")`, or folders of shards
            copied from elsewhere. In any order.
            The folder of a curve or of several threat models holds those of its points, each merged into the
            folder of the same name in `out`.
        out: as for `evaluate`.

    Returns:
        The documents that were written, one per evaluation (more than one where the shards of several
        protocols or subsets lie together).

    Raises:
        MergeError: no shards, a shard is missing or there twice, or they differ in more than their part.
        GuardError: nothing can be written to `out`, or it holds the result of another evaluation.
        EvidenceError, RobustzooError: a file is damaged. Nothing is written for an evaluation on any error.
    """
    out = Path(out)
    check_writable(out)
    found: dict[Path, list[Path]] = {}
    folders = [Path(folder) for folder in folders]
    for folder in folders:
        for point in (folder, *_points(folder)):
            for path in shard_documents(point):
                found.setdefault(point.relative_to(folder) / path.name, []).append(path)
    if not found:
        raise MergeError(
            f"no shards in {', '.join(map(str, folders)) or 'no folder'}; expected the folder that "
            "`robustzoo evaluate --shard i/n --out FOLDER` was given, or its shard-*-of-* folders"
        )
    merged = []
    for name, paths in found.items():
        try:
            merged.append((name.parent, join([with_witnesses(path) for path in paths], paths)))
        except MergeError as error:
            others = [other for other in found if other != name and other.parent == name.parent]
            strange = sorted(str(path) for other in others for path in found[other])
            if not strange:
                raise
            raise MergeError(
                f"{error}. Beside them lie shards of other evaluations: {', '.join(strange)}"
            ) from error
    written = []
    for point, evidence in merged:
        with reserved(out / point):
            written.append(write_evidence(evidence, out / point))
    return written


def _points(folder: Path) -> list[Path]:
    """The folders of several threat models below a folder (`several.folder_of`), smaller epsilons first."""
    found = {}
    for place in folder.glob("*-*"):
        norm, _, epsilon = place.name.partition("-")
        with suppress(RobustzooError):
            found[place] = ThreatModel.parse(f"{norm}:{epsilon.replace('_', '/')}").epsilon
    return sorted(found, key=lambda place: (found[place], place.name))


def shard_documents(folder: Path) -> list[Path]:
    """The Evidence files of shards in a folder: in its own `evidence/` and those of its shard-* folders."""
    if not folder.is_dir():
        raise MergeError(f"{folder} is no folder; expected one that holds shards")
    paths = [*folder.glob("evidence/*.json"), *folder.glob("shard-*-of-*/evidence/*.json")]
    return sorted(path for path in paths if Evidence.load(path, validate=False).is_shard)


def join(shards: Sequence[Evidence], names: Sequence[object]) -> Evidence:
    """The whole Evidence, with its witness set.

    Args:
        shards: all of one evaluation, in any order, with their witness sets.
        names: what to call each in a message.

    Raises:
        MergeError: they are not.
    """
    first = shards[0]
    for shard, name in zip(shards, names, strict=True):
        here, there = ({**dict.fromkeys(_OPTIONAL), **_terms(e)} for e in (shard, first))
        if problem := differing_terms(there, here):
            raise MergeError(
                f"{names[0]} and {name} are shards of different evaluations: {problem}. Expected all parts "
                "of one: name the folder that holds only those, or evaluate the others anew"
            )
    count = first.doc["shard"]["count"]
    places = Counter(shard.doc["shard"]["index"] for shard in shards)
    twice = sorted(index for index, times in places.items() if times > 1)
    if twice:
        which = [str(n) for s, n in zip(shards, names, strict=True) if s.doc["shard"]["index"] in twice]
        raise MergeError(f"shard {_listed(twice)} of {count} is there more than once: {', '.join(which)}")
    if missing := sorted(set(range(1, count + 1)) - set(places)):
        raise MergeError(
            f"shard {_listed(missing)} of {count} is missing (of {names[0]} and the like); evaluate "
            f"{'it' if len(missing) == 1 else 'them'} with --shard {missing[0]}/{count}"
            f"{' and so on' if len(missing) > 1 else ''}, or name the folder"
        )
    evidence = Evidence.build(
        **_sections(first),
        samples=(sample for shard in shards for sample in shard.doc["samples"]),
        passes={kind: sum(shard.doc["passes"][kind] for shard in shards) for kind in ("forward", "backward")},
        run=_run([shard.doc["run"] for shard in sorted(shards, key=lambda s: s.doc["shard"]["index"])]),
    )
    evidence.witness_set = _join_witnesses(shards, first.doc["dataset"]["image_shape"])
    return evidence


def _terms(shard: Evidence) -> dict[str, Any]:
    """Its key without its part: what all shards must share, the number of shards and the weights included."""
    key = shard.key()
    stated = key.pop("shard")
    return {**key, "number of shards": stated["count"], "weights": stated["weights"]}


def _sections(shard: Evidence) -> dict[str, Any]:
    key = shard.key()
    for name in ("schema", "shard"):
        del key[name]
    return {**key, "threat_model": shard.threat_model}


def _join_witnesses(shards: Sequence[Evidence], image_shape: Sequence[int]) -> Witnesses:
    sets = [shard.witness_set for shard in shards if shard.witness_set is not None]
    return Witnesses.of(
        [int(i) for one in sets for i in one.ids],
        [one.stored(row) for one in sets for row in range(len(one))],
        [float(margin) for one in sets for margin in one.margins],
        image_shape,
    )


def _run(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The `run` of the whole: the first start, the longest time, all processes; each shard's own is kept."""
    blind: Counter[str] = Counter()
    for run in runs:
        blind.update(run.get("zero_gradients", {}))
    return {
        **runs[0],
        "started": min(run["started"] for run in runs),
        "wall_seconds": max(run["wall_seconds"] for run in runs),
        "workers": sum(run["workers"] for run in runs),
        "zero_gradients": dict(sorted(blind.items())),
        "shards": list(runs),
    }


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
