"""Progress: a bar on a terminal, plain lines elsewhere, dicts for a function, nothing when silent."""

from __future__ import annotations

import io

import pytest

from robustzoo.evaluation import progress
from robustzoo.evaluation.progress import Reporter, duration


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def feed(reporter: Reporter) -> None:
    with reporter:
        reporter.say("cost: little", "cost")
        for done in range(1, 4):
            reporter.update("apgd-ce", done, 3, robust=2, worker=1)


def test_a_log_gets_lines_now_and_then(monkeypatch):
    stream = io.StringIO()
    feed(Reporter(True, stream))
    assert stream.getvalue() == "cost: little\n"
    monkeypatch.setattr(progress, "_QUIET_SECONDS", -1.0)
    feed(Reporter(True, stream))
    assert "worker 1 apgd-ce: 3/3 2 robust\n" in stream.getvalue()


def test_a_terminal_gets_a_bar():
    stream = Terminal()
    feed(Reporter(True, stream))
    assert "cost: little" in stream.getvalue() and "worker 1 apgd-ce" in stream.getvalue()


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
        "worker": 1,
    }


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.42, "0.4 s"), (12, "12 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations_as_people_say_them(seconds, text):
    assert duration(seconds) == text
