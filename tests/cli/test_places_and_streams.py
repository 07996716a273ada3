"""Where commands write: places that are refused before the work, and streams that others close or use."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from robustzoo.cli import group, main
from robustzoo.cli.output import message_of, passes_through

NAME = "vit_micro2.digits_linf.at_base"
FAST = ("--n", "4", "--protocol", "pgd-2")
COMMAND = (sys.executable, "-c", "from robustzoo.cli import main; main()")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("evaluate", NAME, "--out", ""), "--out has an empty value"),
        (("evaluate", NAME, "--out="), "--out has an empty value"),
        (("evaluate", NAME, "--data", ""), "--data has an empty value"),
        (("evaluate", NAME, "--data-root", ""), "--data-root has an empty value"),
        (("evaluate", ""), "an argument is empty"),
        (("verify", NAME, "--card", ""), "--card has an empty value"),
        (("verify", NAME, ""), "an argument is empty"),
        (("report", NAME, "--html", ""), "--html has an empty value"),
        (("evidence", "merge", "", "--out", "x"), "an argument is empty"),
        (("evidence", "merge", ".", "--out", ""), "--out has an empty value"),
        (("diagnose", "hessian", NAME, "--spectrum", ""), "--spectrum has an empty value"),
        (("plot", ""), "an argument is empty"),
        (("card", ""), "an argument is empty"),
        (("publish", ""), "an argument is empty"),
    ],
    ids=" ".join,
)
def test_empty_values_are_refused(arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(group, list(arguments))
    assert done.exit_code == 2 and words in done.stderr and not list(tmp_path.iterdir())


def test_empty_values_are_refused_in_json_too():
    done = CliRunner().invoke(group, ["evaluate", NAME, "--out", "", "--json"])
    document = json.loads(done.stdout)
    assert done.exit_code == 2 and document["error"] == "UsageError" and "--out" in document["message"]


def test_an_empty_text_after_a_key_is_a_value():
    done = CliRunner().invoke(group, ["recipe", NAME, "--set", "epochs="])
    assert "empty value" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", NAME, "--html", "PLACE.html"),
        ("report", NAME, "--png", "PLACE.png"),
        ("plot", "run", "--out", "PLACE.png"),
        ("diagnose", "hessian", NAME, "--out", "PLACE"),
        ("diagnose", "hessian", NAME, "--spectrum", "PLACE"),
        ("diagnose", "two-moons", "--out", "PLACE"),
        ("diagnose", "lambda-sweep", "--out", "PLACE"),
        ("evidence", "merge", "parts", "--out", "PLACE"),
        ("evaluate", NAME, *FAST, "--out", "PLACE"),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
@pytest.mark.parametrize("kind", ["below a file", "not writable"])
def test_places_that_cannot_be_written_are_refused_by_name(arguments, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "total": 2.0}\n')
    before = sorted(tmp_path.rglob("*"))
    place = "file/x" if kind == "below a file" else "closed/x"
    if kind == "not writable":  # nothing is to the superuser

        def refuse(path, *rest, **options):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr("os.mkdir", refuse)
    done = CliRunner().invoke(group, [part.replace("PLACE", place) for part in arguments])
    monkeypatch.undo()
    said = done.stderr if done.exception is None or isinstance(done.exception, SystemExit) else ""
    said += message_of(done.exception) if isinstance(done.exception, ValueError) else ""
    reason = "file is a file" if kind == "below a file" else "Permission denied"
    assert done.exit_code in (1, 2) and reason in said and place.split("/")[0] in said, (said, done.exception)
    assert "Errno" not in said and ".tmp" not in said
    assert sorted(tmp_path.rglob("*")) == before


def test_errors_of_the_system_name_the_place_and_the_next_step():
    error = OSError(28, "No space left on device", "/results/card.json")
    assert not passes_through(error) and passes_through(BrokenPipeError(32, "Broken pipe"))
    said = "the system refused /results/card.json: No space left on device. "
    assert message_of(error) == said + "Make it possible, or name another place"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize("where", ["2>&-", "2>/dev/full"])
def test_a_measurement_goes_on_when_nobody_reads_its_progress(where, tmp_path):
    if where.endswith("full") and not Path("/dev/full").exists():
        pytest.skip("no device that is always full")
    out = tmp_path / "out"
    arguments = [*COMMAND, "evaluate", NAME, *FAST, "--workers", "2", "--out", str(out)]
    done = subprocess.run(["sh", "-c", f'"$0" "$@" {where}', *arguments], capture_output=True, text=True)
    assert done.returncode == 0 and "robust accuracy" in done.stdout and not done.stderr
    assert len(list((out / "evidence").glob("*.json"))) == 1


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("ls", "nothing*"), 1),
        pytest.param(("verify", NAME), 0, marks=pytest.mark.slow),
        pytest.param(("evaluate", NAME, *FAST, "--json"), 0, marks=pytest.mark.slow),
    ],
)
def test_without_a_standard_output_the_exit_code_is_that_of_the_outcome(arguments, code, tmp_path):
    command = ["sh", "-c", '"$0" "$@" >&-', *COMMAND, *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == code and "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize(
    "arguments", [("ls",), ("ls", "--json"), pytest.param(("verify", NAME), marks=pytest.mark.slow)]
)
def test_a_full_standard_output_is_named(arguments):
    command = ["sh", "-c", '"$0" "$@" >/dev/full', *COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    words = "cannot be written: No space left on device\n"
    assert done.returncode == 2 and done.stderr.endswith(words)


PRINTING = """
import os
import torch

print("at import")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)

    def forward(self, x):
        print("in a forward")
        return self.linear(x.flatten(1))

def factory():
    os.write(1, b"from below Python\\n")
    torch.manual_seed(0)
    return Model().eval()
"""


TALKATIVE = ("--data", "digits", "--threat-model", "linf:0.1", "--n", "4", "--json")
SAID = ("at import", "in a forward", "from below Python")


@pytest.mark.parametrize(
    "command",
    [
        ("evaluate", "talkative.py:factory", "--protocol", "pgd-2", "--epsilons", "0.01,0.02"),
        ("diagnose", "masking", "talkative.py:factory"),
    ],
    ids=" ".join,
)
def test_json_stands_alone_whatever_a_model_prints(command, tmp_path, monkeypatch, capfd):
    (tmp_path / "talkative.py").write_text(PRINTING)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("robustzoo.cli.keep_messages_from_failing", lambda: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["robustzoo", *command, *TALKATIVE])
    with pytest.raises(SystemExit) as end:
        main()
    sys.modules.pop("talkative", None)
    out, said = capfd.readouterr()
    assert not end.value.code and json.loads(out) and all(words in said for words in SAID), said


def test_json_stands_alone_whatever_a_model_prints_in_worker_processes(tmp_path):
    (tmp_path / "talkative.py").write_text(PRINTING)
    command = (*COMMAND, "evaluate", "talkative.py:factory", "--protocol", "pgd-2", "--workers", "2")
    done = subprocess.run([*command, *TALKATIVE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) and all(words in done.stderr for words in SAID)


@pytest.mark.parametrize("model", ["model.py", "model.py:"])
def test_a_file_without_a_function_is_told_what_is_missing(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(group, ["evaluate", model, *FAST])
    assert "expected FILE.py:FUNCTION" in str(done.exception)


def test_the_folder_of_a_training_is_told_from_its_model(tmp_path, ended):
    (tmp_path / "run" / "model").mkdir(parents=True)
    (tmp_path / "run" / "model" / "model.safetensors").touch()
    (tmp_path / "run" / "config.json").write_text("{}")
    for command in (("evaluate", *FAST), ("card",)):
        code, _, said = ended(command[0], str(tmp_path / "run"), *command[1:])
        assert code == 2 and f"name {tmp_path / 'run' / 'model'}" in said


def test_help_and_completion_say_what_each_command_says_of_itself_without_torch():
    context = group.make_context("robustzoo", [], resilient_parsing=True)
    offered = {item.value: item.help for item in group.shell_complete(context, "")}
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    assert offered == {name: command.get_short_help_str(1000) for name, command in commands.items()}
    assert [item.value for item in group.shell_complete(context, "ver")] == ["verify"]
    code = (
        "import sys; from click.testing import CliRunner; from robustzoo.cli import group; "
        "assert 'Attack MODEL' in CliRunner().invoke(group, ['--help']).output; "
        "assert not {'torch', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
