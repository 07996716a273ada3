"""The command line as a user's shell runs it, in this process: a new one takes seconds to load torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from robustzoo.cli import main

# Commands one after the other, where importing torch, matplotlib or NumPy fails.
_WITHOUT_TORCH = """
import contextlib, io, json, sys
sys.modules |= {"torch": None, "matplotlib": None, "numpy": None, "huggingface_hub": None}
from robustzoo import cli
cli.keep_messages_from_failing = lambda: None
found = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["robustzoo", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            code = cli.main()
        except SystemExit as end:
            code = end.code
    found.append((code, out.getvalue(), said.getvalue()))
print(json.dumps(found))
"""


@pytest.fixture
def without_torch(tmp_path):
    """without_torch(commands): exit code, standard output and error of each, run where there is no torch."""

    def run(commands: Sequence[Sequence[str]], cwd: Path = tmp_path) -> list[tuple[int, str, str]]:
        command = [sys.executable, "-c", _WITHOUT_TORCH, json.dumps(commands)]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return [tuple(found) for found in json.loads(done.stdout)]

    return run


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
