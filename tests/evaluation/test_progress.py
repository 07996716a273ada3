"""Progress: a bar on a terminal, plain lines elsewhere, dicts for a function, nothing when silent; and the
time that is left, an upper bound from what is finished, not from what is in the lanes."""

from __future__ import annotations

import io
import time

import pytest

from robustzoo.attacks.clean_pass import Clean
from robustzoo.attacks.protocols import protocol
from robustzoo.evaluation import progress
from robustzoo.evaluation.checks import EvaluationWarning
from robustzoo.evaluation.ledger import CLEAN, Finding, Ledger
from robustzoo.evaluation.progress import Pace, Reporter, estimate
from robustzoo.registry import ThreatModel
from robustzoo.streams import duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def feed(reporter: Reporter) -> None:
    with reporter:
        reporter.say("cost: little", "cost")
        for done in range(1, 4):
            reporter.update("apgd-ce", done, 3, robust=2, of=4, rate=0.25, seconds_left=70.0)


def test_a_log_gets_lines_now_and_then(monkeypatch):
    stream = io.StringIO()
    feed(Reporter(True, stream))
    assert stream.getvalue() == "cost: little\n"
    monkeypatch.setattr(progress, "_QUIET_SECONDS", -1.0)
    feed(Reporter(True, stream))
    line = "apgd-ce: 3/3 0.25/s, at most 70 s left, robust 50.0 % (6.8 to 93.2 %)\n"
    assert line in stream.getvalue()


def test_a_log_is_never_silent_for_long(monkeypatch):
    """Not even where nothing finishes: the last standing is repeated."""
    monkeypatch.setattr(progress, "_SILENT_SECONDS", 0.02)
    stream = io.StringIO()
    with Reporter(True, stream) as reporter:
        reporter.update("apgd-t", 3, 64)
        for _ in range(60_000):  # a guard against hanging alone
            if stream.getvalue().count("apgd-t: 3/64 (nothing finished for ") >= 2:
                break
            time.sleep(0.01)
        else:
            pytest.fail(stream.getvalue())


def test_a_terminal_gets_a_bar():
    stream = Terminal()
    feed(Reporter(True, stream))
    assert "cost: little" in stream.getvalue() and "apgd-ce" in stream.getvalue()


def test_silence_and_a_listener(capsys):
    feed(Reporter(False))
    assert capsys.readouterr() == ("", "")
    events = []
    feed(Reporter(events.append))
    assert events[0] == {"event": "cost", "text": "cost: little"}
    assert events[-1] == {
        "event": "progress",
        "stage": "apgd-ce",
        "done": 3,
        "total": 3,
        "robust": 2,
        "of": 4,
        "rate": 0.25,
        "seconds_left": 70.0,
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.02, "under 1 s"), (4.2, "4.2 s"), (12, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_as_people_say_them(seconds, text):
    assert duration(seconds) == text


def test_an_estimate_is_never_about_nothing():
    assert [estimate(seconds) for seconds in (0.0, 0.9, 12)] == ["under 1 s", "under 1 s", "about 12 s"]


def test_a_warning_is_shown_heard_or_raised_as_one():
    stream, events = io.StringIO(), []
    Reporter(True, stream).warn("odd")
    Reporter(events.append).warn("odd")
    assert stream.getvalue() == "warning: odd\n" and events == [{"event": "warning", "text": "odd"}]

    def evaluate() -> None:
        Reporter(False).warn("odd")

    with pytest.warns(EvaluationWarning, match="odd") as caught:
        evaluate()
    assert caught[0].filename == __file__


LANES = 4


def test_what_is_in_the_lanes_does_not_inflate_the_time_left():
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
