"""Progress: a bar on a terminal, plain lines elsewhere, dicts for a function, nothing when silent."""

from __future__ import annotations

import io
import time

import pytest

from robustzoo.evaluation import progress
from robustzoo.evaluation.checks import EvaluationWarning
from robustzoo.evaluation.progress import Reporter, estimate
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
