"""Several threat models in one folder: the evaluation of each in its own, and one table of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from robustzoo import atomic_files
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.evidence_rules import shard_problem
from robustzoo.evaluation.ranks import evaluate_on_rank
from robustzoo.evaluation.sharding import Rank
from robustzoo.registry import ThreatModel


def evaluate_one(
    rank: Rank | None,
    model: nn.Module,
    data: Any,
    threat_model: ThreatModel,
    protocol: str,
    *,
    out: str | Path | None,
    **options: Any,
) -> tuple[Evidence, Evidence | None]:
    """`evaluate_on_rank` under one of several threat models, which have the folder `out` in common.

    Args:
        model, data, protocol, options: as of `evaluate`.

    Returns, raises: as `evaluate_on_rank`.
    """
    place = None if out is None else folder_of(threat_model, Path(out))
    return evaluate_on_rank(rank, model, data, threat_model, protocol, out=place, **options)


def folder_of(threat_model: ThreatModel, out: Path) -> Path:
    """Where one of several threat models of an evaluation in `out` is written."""
    return out / f"{threat_model.norm}-{threat_model.epsilon_text.replace('/', '_')}"


def part_note(first: Evidence) -> list[str]:
    """The lines that head a table whose rows are shards; none for whole results."""
    problem = shard_problem(first.doc)
    return [] if problem is None else [f"PART OF A RESULT: {problem}", ""]


def write_table(document: dict[str, Any], path: Path) -> None:
    """Write a table of several evaluations as JSON."""
    atomic_files.write_text(path, json.dumps(document, indent=1, sort_keys=True) + "\n")
