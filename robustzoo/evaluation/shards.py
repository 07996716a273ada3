"""Shards: independent parts of one evaluation, for the jobs of a queue and the ranks of a launcher; merged,
they are the bytes of a single run, `run` aside."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustzoo.cards.evidence import Evidence, EvidenceShard, read_evidence
from robustzoo.cards.witnesses import Witnesses
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.terms import (
    check_writable,
    differing_terms,
    reserved,
    shard_terms,
    with_witnesses,
    write_evidence,
)
from robustzoo.registry import ThreatModel


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count`: every count-th image, so that all parts cost about the same."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: Any) -> Shard:
        """From "2/4".

        Raises:
            RobustzooError: it is not i/n with 1 <= i <= n.
        """
        if isinstance(text, cls):
            return text
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text) if isinstance(text, str) else None
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise RobustzooError(f"shard is {text!r}; expected i/n with i from 1 to n, for example 2/4")
        return cls(int(match[1]), int(match[2]))

    def part(self, indices: Sequence[int]) -> Sequence[int]:
        """Its part of the indices.

        Raises:
            RobustzooError: there are more shards than images.
        """
        if self.count > len(indices):
            raise RobustzooError(
                f"{self.count} shards (or ranks) would share {len(indices)} images; expected at most as many "
                "as there are images"
            )
        return indices[self.index - 1 :: self.count]

    def folder(self, out: Path) -> Path:
        """Where this shard of the evaluation in `out` is written: a folder of its own, so that shards may run
        at the same time."""
        return out / f"shard-{self.index}-of-{self.count}"

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


@dataclass(frozen=True)
class Rank:
    """This process among those that a launcher (torchrun, deepspeed) has started; `local`: on its machine."""

    index: int
    count: int
    local: int

    @property
    def shard(self) -> Shard:
        return Shard(self.index + 1, self.count)


def this_rank(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """The rank that a launcher gave this process; None without one, or with a single process.

    Raises:
        RobustzooError: RANK, WORLD_SIZE or LOCAL_RANK make no sense.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    stated = {name: environment.get(name, "0") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if not all(value.isdecimal() for value in stated.values()) or int(stated["RANK"]) >= int(
        stated["WORLD_SIZE"]
    ):
        raise RobustzooError(
            f"the environment says {', '.join(f'{k}={v!r}' for k, v in stated.items())}; expected what "
            "torchrun sets, 0 <= RANK < WORLD_SIZE: unset them to evaluate in one process"
        )
    rank = Rank(int(stated["RANK"]), int(stated["WORLD_SIZE"]), int(stated["LOCAL_RANK"]))
    return rank if rank.count > 1 else None


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
        RobustzooError: no shards, a shard is missing or there twice, or they differ in more than their part;
            nothing can be written to `out`, or it holds the result of another evaluation.
        EvidenceError: a file is damaged. Nothing is written for an evaluation on any error.
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
        raise RobustzooError(
            f"no shards in {', '.join(map(str, folders)) or 'no folder'}; expected the folder that "
            "`robustzoo evaluate --shard i/n --out FOLDER` was given, or its shard-*-of-* folders"
        )
    merged = []
    for name, paths in found.items():
        shards = [with_witnesses(path) for path in paths]
        try:
            merged.append((name.parent, join(shards, paths)))
        except RobustzooError as error:
            others = [other for other in found if other != name and other.parent == name.parent]
            strange = sorted(str(path) for other in others for path in found[other])
            if not strange:
                raise
            raise RobustzooError(
                f"{error}. Beside them lie shards of other evaluations: {', '.join(strange)}"
            ) from error
    written = []
    for point, evidence in merged:
        with reserved(out / point):
            written.append(write_evidence(evidence, out / point))
    return written


def _points(folder: Path) -> list[Path]:
    """The folders of several threat models below a folder (`series.folder_of`), smaller epsilons first."""
    found = {}
    for place in folder.glob("*-*"):
        norm, _, epsilon = place.name.partition("-")
        with suppress(ValueError):
            found[place] = ThreatModel.parse(f"{norm}:{epsilon.replace('_', '/')}").epsilon
    return sorted(found, key=lambda place: (found[place], place.name))


def shard_documents(folder: Path) -> list[Path]:
    """The Evidence files of shards in a folder: in its own `evidence/` and those of its shard-* folders."""
    if not folder.is_dir():
        raise RobustzooError(f"{folder} is no folder; expected one that holds shards")
    paths = [*folder.glob("evidence/*.json"), *folder.glob("shard-*-of-*/evidence/*.json")]
    return sorted(path for path in paths if isinstance(read_evidence(path, validate=False), EvidenceShard))


def join(shards: Sequence[Evidence], names: Sequence[object]) -> Evidence:
    """The whole Evidence, with its witness set.

    Args:
        shards: all of one evaluation, in any order, with their witness sets.
        names: what to call each in a message.

    Raises:
        RobustzooError: they are not.
    """
    first = shards[0]
    for shard, name in zip(shards, names, strict=True):
        if problem := differing_terms(shard_terms(first), shard_terms(shard)):
            raise RobustzooError(
                f"{names[0]} and {name} are shards of different evaluations: {problem}. Expected all parts "
                "of one: name the folder that holds only those, or evaluate the others anew"
            )
    count = first.doc["shard"]["count"]
    places = Counter(shard.doc["shard"]["index"] for shard in shards)
    twice = sorted(index for index, times in places.items() if times > 1)
    if twice:
        which = [str(n) for s, n in zip(shards, names, strict=True) if s.doc["shard"]["index"] in twice]
        raise RobustzooError(f"shard {_listed(twice)} of {count} is there more than once: {', '.join(which)}")
    if missing := sorted(set(range(1, count + 1)) - set(places)):
        raise RobustzooError(
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
    zero_gradients: Counter[str] = Counter()
    for run in runs:
        zero_gradients.update(run.get("zero_gradients", {}))
    return {
        **runs[0],
        "started": min(run["started"] for run in runs),
        "wall_seconds": max(run["wall_seconds"] for run in runs),
        "workers": sum(run["workers"] for run in runs),
        "zero_gradients": dict(sorted(zero_gradients.items())),
        "shards": list(runs),
    }


def _listed(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
