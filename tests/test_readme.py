"""Every code block of the README, run as a reader would."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from robustzoo.cli import group

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
COMMANDS = [line for language, text in BLOCKS if language == "bash" for line in text.strip().splitlines()]
# These install from a package index, which a test must not do; continuous integration runs them for real.
MAKE = [line for line in COMMANDS if line.startswith("make ")]


def test_every_block_is_of_a_kind_that_is_run():
    assert {language for language, _ in BLOCKS} == {"bash", "python"}
    assert len(COMMANDS) >= 10 and MAKE == ["make demo", "make test"]


def test_python_blocks_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec("\n".join(text for language, text in BLOCKS if language == "python"), names)
    logits = names["logits"]
    assert torch.equal(logits, names["model"].head(names["features"]))
    assert torch.allclose(names["same"], logits, atol=1e-5)
    assert names["report"].outcome == "consistent" and names["evidence"].robust_accuracy.n == 40


@pytest.mark.parametrize("command", MAKE)
def test_make_targets_exist(command):
    subprocess.run([*command.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


def test_commands_until_the_training_run_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in itertools.takewhile(lambda command: not command.startswith("deepspeed"), COMMANDS):
        if command not in MAKE:
            program, *arguments = command.split()
            done = CliRunner().invoke(group, arguments, catch_exceptions=False)
            assert program == "robustzoo" and done.exit_code == 0, f"$ {command}\n{done.output}"


@pytest.mark.slow
def test_commands_run_one_after_the_other(tmp_path):
    (tmp_path / "training").symlink_to(ROOT / "training")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in COMMANDS:
        if command in MAKE:
            continue
        done = subprocess.run(
            command.split(), cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}\n{done.stderr}"
