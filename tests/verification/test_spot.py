"""The spot check: what it costs and how often it errs, over simulated verdicts; and on real models."""

from __future__ import annotations

import functools
import shutil
from dataclasses import replace

import numpy as np
import pytest

from robustzoo.attacks.protocols import protocol
from robustzoo.evaluation.prepare import ask, prepare
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.workers import attacked
from robustzoo.registry import ThreatModel, entry
from robustzoo.verification.spot import Bounds, FirstTier, decide, first_tier, spot
from robustzoo.verification.verify import verify
from tests.verification.forging import forge_folder

N, ROBUST, TOLERANCE = 5000, 2440, 50  # 48.8 %, 1 point
LINF = ThreatModel.parse("linf:1/40")
CLAIMS = 400


def outcome(gap: int, claimed: int, draw: int, proven: bool = True) -> tuple[str, int]:
    """(what the spot check says of a claim, full runs it took), with `gap` of the tier's survivors not
    robust."""
    size = ROBUST + gap
    broken = np.random.default_rng([draw, gap]).permutation(size) < gap
    bounds = Bounds(claimed - TOLERANCE, None if proven else claimed + TOLERANCE)
    found = decide(range(size), bounds, lambda ids: broken[ids].tolist(), 64, entropy=draw)
    assert found.drawn == 0 or found.low <= found.failures + size - found.drawn
    if found.most < bounds.least or (bounds.most is not None and found.least > bounds.most):
        return "refuted", found.drawn
    assert found.least >= bounds.least and (bounds.most is None or found.most <= bounds.most)
    return "confirmed", found.drawn


def test_a_true_claim_costs_a_ninth_of_the_survivors_and_one_three_points_too_high_nothing():
    gap = N * 2 // 1000  # 0.2 points
    honest = [outcome(gap, ROBUST, draw) for draw in range(200)]
    assert {said for said, _ in honest} == {"confirmed"}
    assert np.mean([drawn for _, drawn in honest]) <= (ROBUST + gap) / 9
    assert outcome(gap, ROBUST + N * 3 // 100, 0) == ("refuted", 0)


@pytest.mark.parametrize(
    ("points", "right"), [(0, "confirmed"), (0.9, "confirmed"), (1.1, "refuted"), (1.5, "refuted")]
)
def test_errors_are_rare_where_the_sample_decides(points, right):
    gap, claimed = N * 22 // 1000, ROBUST + round(N * points / 100)
    wrong = sum(outcome(gap, claimed, draw)[0] != right for draw in range(CLAIMS))
    assert wrong <= 0.05 * CLAIMS


@pytest.mark.parametrize(
    ("points", "right"), [(0, "confirmed"), (-0.9, "confirmed"), (-1.1, "refuted"), (-1.5, "refuted")]
)
def test_without_witnesses_the_sample_decides_the_upper_part_too(points, right):
    gap, claimed = N * 22 // 1000, ROBUST + round(N * points / 100)
    wrong = sum(outcome(gap, claimed, draw, proven=False)[0] != right for draw in range(CLAIMS // 10))
    assert wrong <= 0.05 * CLAIMS / 10


def test_the_draw_is_fresh_recorded_and_can_be_repeated():
    drawn: list[list[int]] = []

    def broken(ids):
        drawn.append(list(ids))
        return [False] * len(ids)

    run = functools.partial(decide, range(0, 4000, 2), Bounds(1950), broken, 8)
    first, second = run(), run()
    assert first.entropy != second.entropy and len(first.entropy) == 32
    seen = [i for batch in drawn for i in batch]
    assert len(set(seen[: first.drawn])) == first.drawn and {i % 2 for i in seen} == {0}
    drawn.clear()
    assert run(entropy=int(first.entropy, 16)) == first
    assert [i for batch in drawn for i in batch] == seen[: first.drawn]


def test_nothing_is_drawn_where_nothing_is_open():
    never = functools.partial(decide, broken=lambda ids: pytest.fail("a full run"), batch=8)
    assert never(range(10), Bounds(11)).most == 10  # the tier refutes
    assert never([], Bounds(0)).most == 0
    assert never(range(10), Bounds(-1)).entropy is None  # no count could break it


def test_the_first_tier_is_part_of_the_protocol():
    standard = protocol("aa-standard", LINF, 10)
    tier = first_tier(standard)
    assert tier.attacks == standard.attacks[:1] and tier.name == "first tier of aa-standard"
    for name, threat_model in (("aa-plus", LINF), ("aa-standard", ThreatModel.parse("l1:1"))):
        whole = protocol(name, threat_model, 10)
        assert whole.attacks[0].restarts == 5
        assert first_tier(whole).attacks == (replace(whole.attacks[0], restarts=1),)
    assert [m.targets for m in first_tier(protocol("apgd-t", LINF, 10)).attacks] == [1]
    for whole in ("pgd-5", "apgd-ce", "square"):
        assert first_tier(protocol(whole, LINF, 10)) == protocol(whole, LINF, 10)


@pytest.mark.parametrize(
    ("threat_model", "whole"), [("linf:1/40", "apgd-ce+t"), ("linf:1/40", "apgd-t"), ("l1:0.5", "apgd-ce")]
)
def test_survivors_of_the_tier_contain_all_that_the_protocol_leaves(linear, threat_model, whole):
    """Same noise: an image that the tier breaks, the protocol breaks."""
    asked = ask(linear, threat_model, whole, indices=range(32), seed=7)
    with prepare(linear, "digits", asked) as ready:
        ready = ready.sized(32)
        both = ready.work, FirstTier(**vars(ready.work))
        robust, survivors = (
            set(attacked(replace(ready, work=w), range(32), 1, Reporter(False))[0]) for w in both
        )
        assert len(robust) > 0 and robust <= survivors
        found = spot(ready, Bounds(len(robust), len(robust)), 1, Reporter(False))
    assert found.survivors == len(survivors)
    assert found.least == found.most == len(robust), "with no tolerance at all, every survivor is drawn"


def test_a_protocol_that_is_all_tier_is_counted_exactly(published):
    report = verify(published, mode="spot", same_seed=True, progress=False)
    assert (report.outcome, report.exit_code) == ("confirmed", 0)
    numbers = report.numbers
    assert numbers["robust_least"] == numbers["robust_most"] == numbers["robust_claimed"]
    assert numbers["robust_difference"] == 0 and report.claims[0].entropy is None
    assert verify(published, mode="spot", require="confirmed", progress=False).exit_code == 0


def test_costs_are_said_before_anything_runs(published):
    messages: list[dict] = []
    verify(published, mode="spot", progress=messages.append)
    costs = [m["text"] for m in messages if m["event"] == "cost"]
    assert messages[0]["event"] == "cost" and costs[0].startswith("replay of 100 images and")
    assert "forwards" in costs[1] and "backwards" in costs[1]


def test_a_forged_folder_is_refuted_by_the_spot_check(folder):
    forge_folder(folder, 5)
    assert verify(folder, progress=False).outcome == "consistent"
    report = verify(folder, mode="spot", progress=False)
    assert (report.outcome, report.exit_code) == ("refuted", 1)
    assert report.parts == {"clean": "holds", "upper": "holds", "lower": "refuted"}
    assert "survived the first tier" in report.text()


def test_a_missing_witness_file_leaves_the_upper_part_to_the_attacks(folder):
    next((folder / "evidence").glob("*.witness.safetensors")).unlink()
    report = verify(folder, mode="spot", progress=False)
    assert report.outcome == "confirmed" and "survived" in report.claims[0].reasons["upper"]


def test_a_claim_that_the_witnesses_refute_costs_no_attack(folder):
    forge_folder(folder, 5, keep_evidence=True)
    messages: list[dict] = []
    report = verify(folder, mode="spot", progress=messages.append)
    assert report.outcome == "refuted" and "witnesses leave at most" in report.claims[0].reasons["lower"]
    assert all(m["event"] != "progress" for m in messages)


@pytest.mark.slow
def test_workers_share_a_spot_check(published):
    one, two = (
        verify(published, mode="spot", same_seed=True, workers=workers, progress=False) for workers in (1, 2)
    )
    assert one.numbers == two.numbers and two.outcome == "confirmed"


@pytest.mark.slow
def test_five_points_too_many_on_the_bundled_digits_are_refuted(tmp_path):
    name = "vit_micro2.digits_linf.at_trh"
    folder = shutil.copytree(entry(name).weights.folder, tmp_path / "forged")
    forge_folder(folder, 25)
    assert verify(folder, progress=False).outcome == "consistent"
    report = verify(folder, mode="spot", progress=False)
    assert (report.outcome, report.exit_code, report.parts["lower"]) == ("refuted", 1, "refuted")


def test_each_batch_says_how_many_are_drawn() -> None:
    said: list[str] = []
    decide(range(10), Bounds(10), lambda ids: [False] * len(ids), 4, entropy=1, say=said.append)
    assert said == [f"drawn {n} of 10 survivors" for n in (4, 8, 10)]
