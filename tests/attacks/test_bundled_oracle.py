"""Our attacks on a bundled model against the reference AutoAttack's verdicts (make_bundled_oracle.py)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from runs import run_protocol

import robustzoo
from robustzoo.attacks.protocols import protocol
from robustzoo.data import load_dataset

ORACLE = json.loads(Path(__file__).with_name("bundled_oracle.json").read_text())


@pytest.mark.parametrize(
    "attack", ["apgd-ce", *(pytest.param(a, marks=pytest.mark.slow) for a in ("apgd-t", "fab-t", "square"))]
)
def test_verdicts_agree_with_the_reference(attack):
    """Counts within the reference's own range over seeds plus 1 of 60, and single verdicts nearly so."""
    model, data = robustzoo.load(ORACLE["model"]), load_dataset("digits", split="test")
    results = run_protocol(
        model,
        data,
        ORACLE["ids"],
        protocol(attack, model.threat_model, 10),
        model.threat_model,
        10,
        micro_batch_size=60,
    )
    runs = ORACLE["robust"][attack]
    counts, ours = [sum(run) for run in runs], [int(r.robust) for r in results]
    assert min(counts) - 1 <= sum(ours) <= max(counts) + 1
    assert min(sum(a != b for a, b in zip(ours, run, strict=True)) for run in runs) <= 3
