"""`robustzoo doctor`: what is found, what follows from it, and no torch before it is needed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from robustzoo.cli import doctor as module
from robustzoo.cli.doctor import abilities, doctor, installed, parse_operations

REPORT = """
--------------------------------------------------
op name ................ installed .. compatible
--------------------------------------------------
deepspeed_not_implemented  \x1b[93m[NO]\x1b[0m ....... \x1b[92m[OKAY]\x1b[0m
\x1b[93m [WARNING] \x1b[0m async_io: please install the libaio-dev package with apt
async_io ............... \x1b[93m[NO]\x1b[0m ....... \x1b[93m[NO]\x1b[0m
cpu_adam ............... \x1b[92m[YES]\x1b[0m ...... \x1b[92m[OKAY]\x1b[0m
torch version .................... 2.6
"""
TOOLS = {"compiler": "/usr/bin/c++", "ninja": "/usr/bin/ninja", "nvcc": None, "git": None}
LIBRARIES = dict.fromkeys(module.LIBRARIES, "1.0")
GPU = {"name": "card", "memory_gb": 80.0, "bf16": True}


def test_the_report_of_deepspeed():
    assert parse_operations(REPORT) == {"async_io": False, "cpu_adam": True}


@pytest.mark.parametrize(
    ("changes", "yes", "no", "words"),
    [
        ({}, "train on a CPU", "train on a GPU", "a GPU"),
        ({"gpus": [GPU]}, "train on a GPU", "train on several GPUs", "nvcc"),
        ({"gpus": [GPU, GPU]}, "train on several GPUs", None, "nvcc"),
        ({"gpus": [GPU | {"bf16": False}]}, "train on a GPU", "train in bf16", "nvcc"),
        ({"tools": TOOLS | {"compiler": None}}, "train on a CPU", "train with --compile", "a C++ compiler"),
        ({"tools": TOOLS | {"ninja": None}}, "train on a CPU", None, "a GPU"),
        (
            {"libraries": LIBRARIES | {"deepspeed": None}},
            "load, evaluate, verify",
            "train on a CPU",
            "robustzoo[train]",
        ),
    ],
)
def test_what_can_run_and_what_to_install(changes, yes, no, words):
    found = {"libraries": LIBRARIES, "tools": TOOLS, "gpus": []} | changes
    able, install = abilities(found)
    assert able[yes] and (no is None or not able[no])
    assert any(words in line for line in install)


def test_this_machine(monkeypatch):
    monkeypatch.setattr(module, "deepspeed_operations", lambda: {"cpu_adam": True})
    shown = CliRunner().invoke(doctor, ["--json"])
    found = json.loads(shown.output)
    assert shown.exit_code == 0 and found["abilities"]["load, evaluate, verify"]
    assert found["libraries"]["torch"] == installed("torch") and found["machine"]["cores"] >= 1
    page = CliRunner().invoke(doctor, []).output
    for name in ("torch", "compiler", "GPU", "yes  load, evaluate, verify", "DeepSpeed ops"):
        assert name in page


def test_an_absent_library_and_a_report_that_fails(monkeypatch):
    assert installed("no-such-distribution") is None
    monkeypatch.setattr(module.sys, "executable", "/nowhere/python")
    assert module.deepspeed_operations() is None


def test_help_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; sys.argv = ['robustzoo', 'doctor', '--help']; "
    code += "from robustzoo.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "what this machine can run" in done.stdout
