"""The time that is left: an upper bound from what is finished, not from what is in the lanes."""

from __future__ import annotations

from robustzoo.attacks.clean_pass import Clean
from robustzoo.attacks.protocols import protocol
from robustzoo.evaluation.ledger import CLEAN, Finding, Ledger
from robustzoo.evaluation.progress import Pace, Reporter
from robustzoo.registry import ThreatModel

LANES = 4


def test_what_is_in_the_lanes_does_not_inflate_it():
    """Four images of equal cost, a pass a second: the estimates are right, or there is none yet."""
    chosen = protocol("apgd-ce+t", ThreatModel.parse("linf:8/255"), 10)
    costs = [sum(attack.passes) for attack in chosen.attacks]
    ledger = Ledger(range(LANES), [attack.name for attack in chosen.attacks], LANES)
    events: list[dict] = []
    now = 0.0
    pace = Pace(ledger, chosen, Reporter(events.append), LANES, clock=lambda: now)

    def finish(found: Finding) -> float | None:
        ledger.add(found)
        pace.show([found])
        return events[-1]["seconds_left"]

    for i in range(LANES):
        now += 1
        assert finish(Finding(i, CLEAN, LANES, 1, clean=Clean(i, 0, 0, tuple(range(1, 10))))) is None
    now += LANES * costs[0] - 3  # all but three passes of the first attack are done when one image is through
    for i in range(LANES):
        left = finish(Finding(i, 1, LANES, costs[0], 0))
        assert (left is None) == (i < LANES - 1)
        now += 1
    at_most = LANES * costs[1]
    assert left is not None and abs(left - at_most) < 5
    passed = LANES * costs[1] - 3
    now += passed
    assert finish(Finding(0, 2, LANES, costs[1], 0)) <= max(left - passed, 0)
    for i in range(1, LANES):
        left = finish(Finding(i, 2, LANES, costs[1], 0))
    assert left == 0


def test_after_the_clean_pass_the_time_of_what_is_left_is_said_once():
    """Two of four images are wrong already: the estimate made before said twice as much."""
    chosen = protocol("apgd-ce+t", ThreatModel.parse("linf:8/255"), 10)
    ledger = Ledger(range(LANES), [attack.name for attack in chosen.attacks], LANES)
    events: list[dict] = []
    pace = Pace(
        ledger, chosen, Reporter(events.append), LANES, lambda count: 100.0 * count, clock=lambda: 5.0
    )
    for i in range(LANES):
        found = Finding(i, CLEAN, LANES, 1, clean=Clean(i, 0, i % 2, tuple(range(1, 10))))
        ledger.add(found)
        pace.show([found])
    found = Finding(0, 1, LANES, 1)
    ledger.add(found)
    pace.show([found])
    said = [event["text"] for event in events if event["event"] == "note"]
    assert said == [
        "clean: 2 of 4 images are classified correctly; the attacks on 2 take about 3 min 20 s if all stay "
        "robust"
    ]
    shown = [event["seconds_left"] for event in events if event["event"] == "progress"]
    assert shown == [None, None, None, 200.0, 200.0]
