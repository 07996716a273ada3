"""The command line as a user's shell runs it, in this process: a new one takes seconds to load torch."""

from __future__ import annotations

import sys

import pytest

from robustzoo.cli import main


@pytest.fixture
def ended(capsys, monkeypatch):
    """ended(*arguments): exit code, standard output and error of the command line."""
    monkeypatch.setattr("robustzoo.cli.keep_messages_from_failing", lambda: None)

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["robustzoo", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code, *capsys.readouterr()

    return run
