"""Shards: independent parts of one evaluation, for the jobs of a queue and the ranks of a launcher."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustzoo.evaluation.guards import GuardError


@dataclass(frozen=True)
class Shard:
    """Part `index` (from 1) of `count`: every count-th image, so that all parts cost about the same."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: Any) -> Shard:
        """From "2/4".

        Raises:
            GuardError: it is not i/n with 1 <= i <= n.
        """
        if isinstance(text, cls):
            return text
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text) if isinstance(text, str) else None
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise GuardError(f"shard is {text!r}; expected i/n with i from 1 to n, for example 2/4")
        return cls(int(match[1]), int(match[2]))

    def part(self, indices: Sequence[int]) -> Sequence[int]:
        """Its part of the indices.

        Raises:
            GuardError: there are more shards than images.
        """
        if self.count > len(indices):
            raise GuardError(
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
        GuardError: RANK, WORLD_SIZE or LOCAL_RANK make no sense.
    """
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    stated = {name: environment.get(name, "0") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    if not all(value.isdecimal() for value in stated.values()) or int(stated["RANK"]) >= int(
        stated["WORLD_SIZE"]
    ):
        raise GuardError(
            f"the environment says {', '.join(f'{k}={v!r}' for k, v in stated.items())}; expected what "
            "torchrun sets, 0 <= RANK < WORLD_SIZE: unset them to evaluate in one process"
        )
    rank = Rank(int(stated["RANK"]), int(stated["WORLD_SIZE"]), int(stated["LOCAL_RANK"]))
    return rank if rank.count > 1 else None
