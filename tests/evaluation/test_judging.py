"""Full verification of claims about few images: a bound that no count can break confirms nothing."""

from __future__ import annotations

import pytest

from robustzoo.evaluation.judging import judge_clean, judge_full, judge_replay
from robustzoo.evaluation.verification_report import HOLDS, NOT_TESTED, REFUTED, ClaimReport


def judged(claimed: int, found: int, n: int, tolerance: int = 3) -> ClaimReport:
    report = ClaimReport(
        None, tolerance, "not comparable", {"clean": HOLDS, "upper": NOT_TESTED, "lower": NOT_TESTED}
    )
    report.numbers = {"n": n, "clean_found": n, "robust_claimed": claimed, "robust_found": found}
    judge_full(report)
    return report


@pytest.mark.parametrize(
    ("claimed", "found", "n", "upper", "lower", "outcome"),
    [
        (3, 1, 3, NOT_TESTED, NOT_TESTED, "inconclusive"),
        (3, 3, 3, HOLDS, HOLDS, "confirmed"),
        (0, 2, 5, HOLDS, HOLDS, "confirmed"),
        (40, 38, 42, NOT_TESTED, HOLDS, "inconclusive"),
        (40, 36, 50, HOLDS, REFUTED, "refuted"),
        (418, 416, 500, HOLDS, HOLDS, "confirmed"),
        (418, 422, 500, REFUTED, HOLDS, "refuted"),
    ],
)
def test_bounds_that_allow_any_count_are_not_tested(claimed, found, n, upper, lower, outcome):
    report = judged(claimed, found, n)
    assert (report.parts["upper"], report.parts["lower"], report.outcome) == (upper, lower, outcome)
    assert ("allows any count" in report.reasons["upper"]) == (upper == NOT_TESTED)


@pytest.mark.parametrize(
    ("claimed", "clean", "bound", "outcome"),
    [(3, 3, 3, "consistent"), (3, 1, 1, "inconclusive"), (2, 3, 3, "inconclusive"), (0, 3, 0, "consistent")],
)
def test_replay_of_three_images_is_consistent_only_with_equal_counts(claimed, clean, bound, outcome):
    report = ClaimReport(None, 3, "not comparable", dict.fromkeys(("clean", "upper", "lower"), NOT_TESTED))
    report.numbers = {"n": 3, "clean_claimed": 3, "clean_found": clean, "clean_in_evidence": 3}
    report.numbers |= {"robust_claimed": claimed, "robust_in_evidence": claimed}
    report.numbers |= {"robust_at_most": bound, "witnesses_valid": clean - bound}
    judge_clean(report)
    judge_replay(report)
    assert report.outcome == outcome
