"""Full verification of claims about few images: a bound that no count can break confirms nothing."""

from __future__ import annotations

import pytest

from robustzoo.verification.judging import judge_clean, judge_full, judge_replay, judge_spot, spot_bounds
from robustzoo.verification.report import HOLDS, NOT_TESTED, REFUTED, ClaimReport
from robustzoo.verification.spot import Bounds, Spot


def judged(claimed: int, found: int, n: int, tolerance: int = 3) -> ClaimReport:
    report = ClaimReport.untested(None, tolerance)
    report.parts["clean"] = HOLDS
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
    report = ClaimReport.untested(None, 3)
    report.numbers = {"n": 3, "clean_claimed": 3, "clean_found": clean, "clean_in_evidence": 3}
    report.numbers |= {"robust_claimed": claimed, "robust_in_evidence": claimed}
    report.numbers |= {"robust_at_most": bound, "witnesses_valid": clean - bound}
    judge_clean(report)
    judge_replay(report)
    assert report.outcome == outcome


def spotted(claimed, clean, bound, found, n=100, tolerance=3, clean_part=HOLDS) -> ClaimReport:
    """A claim after a spot check; `found`: (survivors, drawn, failures, low, high), or None."""
    report = ClaimReport.untested(None, tolerance)
    report.parts["clean"] = clean_part
    report.numbers = {"n": n, "clean_found": clean, "robust_claimed": claimed, "robust_at_most": bound}
    judge_spot(report, None if found is None else Spot(*found))
    return report


@pytest.mark.parametrize(
    ("claimed", "clean", "bound", "found", "upper", "lower", "outcome"),
    [
        (80, 95, 80, (82, 40, 0, 0, 5), HOLDS, HOLDS, "confirmed"),  # 77 to 82 are robust
        (80, 95, 80, (82, 40, 0, 0, 6), HOLDS, NOT_TESTED, "inconclusive"),  # 76 to 82: not decided
        (80, 95, 80, (82, 20, 9, 6, 30), HOLDS, REFUTED, "refuted"),
        (80, 95, 80, (76, 0, 0, 0, 76), HOLDS, REFUTED, "refuted"),  # by the tier alone
        (80, 95, 95, (83, 0, 0, 0, 5), HOLDS, HOLDS, "confirmed"),  # the tier proves the upper part
        (80, 95, 95, (90, 50, 9, 7, 12), HOLDS, HOLDS, "confirmed"),  # 78 to 83, without witnesses
        (80, 95, 95, (90, 50, 0, 0, 5), REFUTED, HOLDS, "refuted"),  # 85 to 90
        (3, 10, 3, (5, 0, 0, 0, 5), HOLDS, NOT_TESTED, "inconclusive"),  # no count could break the lower part
        (3, 10, 3, (3, 3, 0, 0, 0), HOLDS, HOLDS, "confirmed"),  # the very count claimed
        (8, 10, 10, (9, 4, 0, 0, 2), NOT_TESTED, HOLDS, "inconclusive"),  # nor the upper
    ],
)
def test_a_spot_check_says_what_its_bounds_give(claimed, clean, bound, found, upper, lower, outcome):
    report = spotted(claimed, clean, bound, found)
    assert (report.parts["upper"], report.parts["lower"], report.outcome) == (upper, lower, outcome)


def test_a_claim_that_is_refuted_already_is_not_attacked():
    clean = spotted(80, 95, 80, None, clean_part=REFUTED)
    assert clean.outcome == "refuted" and clean.parts["lower"] == NOT_TESTED
    assert "the clean count refutes" in clean.reasons["lower"]
    witnessed = spotted(80, 95, 70, None)
    assert witnessed.parts["lower"] == REFUTED and "witnesses leave at most 70" in witnessed.reasons["lower"]


def test_what_a_spot_check_must_decide():
    def bounds(clean_part, bound):
        report = ClaimReport(None, 3, "", {"clean": clean_part})
        report.numbers = {"robust_claimed": 80, "robust_at_most": bound}
        return spot_bounds(report)

    assert bounds(HOLDS, 80) == Bounds(77, None) and bounds(HOLDS, 90) == Bounds(77, 83)
    assert bounds(REFUTED, 80) is None and bounds(HOLDS, 76) is None
