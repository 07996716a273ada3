"""L1 on a bundled model against pyautoattack, run on the spot: there is no stored oracle for this norm."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import robustzoo
from robustzoo.registry.threat_model import ThreatModel

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "oracle_agreement.py"
IMAGES, SEEDS = 100, (0, 1)


@pytest.mark.slow
def test_every_attack_alone_and_the_worst_case():
    """Each within the range of the reference's seeds plus or minus 3, the worst case within 3."""
    pytest.importorskip("pyautoattack", reason="needs the extra crosscheck")
    benchmark = runpy.run_path(str(BENCHMARK))
    model, threat_model = robustzoo.load("vit_micro2.digits_linf.at_trh"), ThreatModel.parse("l1:1")
    data = benchmark["correct_digits"](model, IMAGES)
    worst = [[True] * IMAGES, [True] * IMAGES]
    for attack in benchmark["STANDARD"]:
        theirs = [benchmark["reference_flags"](model, data, threat_model, attack, seed) for seed in SEEDS]
        ours = benchmark["our_flags"](model, data, threat_model, attack, 0, IMAGES)
        counts = [sum(flags) for flags in theirs]
        assert min(counts) - 3 <= sum(ours) <= max(counts) + 3, attack
        worst = [
            [a and b for a, b in zip(flags, more, strict=True)]
            for flags, more in zip(worst, (theirs[0], ours), strict=True)
        ]
    assert abs(sum(worst[0]) - sum(worst[1])) <= 3
