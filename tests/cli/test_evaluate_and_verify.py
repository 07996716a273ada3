"""`robustzoo evaluate` and `verify`: with --json errors are JSON too, with the exit code of the text."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from robustzoo.cli import group
from robustzoo.registry import entry

NAME = "vit_micro2.digits_linf.at_base"
FLIPPED = "FLIPPED"  # stands for a folder with a witness file of other bytes


def run(*arguments: str):
    command = [sys.executable, "-c", "from robustzoo.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def flipped(tmp_path_factory) -> Path:
    folder = shutil.copytree(entry(NAME).weights.folder, tmp_path_factory.mktemp("flipped") / "model")
    (file,) = (folder / "evidence").glob("*.witness.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    return folder


ERRORS = [
    (("verify", "vit_micro2.digits_linf.at_bse"), "UnknownName", "at_base"),
    (("verify", "vit_l16.imagenet_linf.at_trh"), "RobustzooError", "training/train.py"),
    (("verify", NAME, "--card", "absent.md"), "CardError", "Next: write it"),
    (("verify", NAME, "--log", "absent/folder/log.jsonl"), "RobustzooError", "folder does not exist"),
    (("verify", NAME, "--data-root", "nowhere"), "MissingData", "leave it away"),
    (("verify", FLIPPED), "RobustzooError", "witness.safetensors"),
    (("verify", NAME, "--mode", "quick"), "BadParameter", "quick"),
    (("verify", NAME, "--seed", "-1"), "BadParameter", "-1"),
    (("verify", NAME, NAME, "--card", "x.md"), "UsageError", "exactly one MODEL"),
    (("evaluate", NAME, "--protocol", "autoattack"), "ProtocolError", "aa-standard"),
    (("evaluate", NAME, "--data-root", "nowhere"), "MissingData", "and need no data folder"),
    (("evaluate", NAME, "--data", "cifar10"), "MissingData", "--data-root DIR"),
    (("evaluate",), "MissingParameter", "MODEL"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), ERRORS, ids=[" ".join(a) for a, *_ in ERRORS])
def test_errors_are_json_where_json_is_asked_for(arguments, kind, words, flipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [str(flipped) if argument == FLIPPED else argument for argument in arguments]
    as_json = CliRunner().invoke(group, [*arguments, "--json"])
    document = json.loads(as_json.output)
    assert as_json.exit_code == 2
    assert document["schema"] == "robustzoo.error/1"
    assert (document["error"], document["exit_code"]) == (kind, 2)
    assert words in document["message"]
    assert not list(tmp_path.iterdir())


def test_without_json_errors_are_text_with_the_same_exit_code(flipped):
    done = run("verify", str(flipped))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("robustzoo: ") and "expected sha256" in done.stderr
    assert "found    sha256" in done.stderr and "Next: restore the witness file" in done.stderr
    usage = run("verify", NAME, "--mode", "quick")
    assert usage.returncode == 2 and "Invalid value for '--mode'" in usage.stderr


def test_a_report_in_json_says_claimed_found_and_difference():
    done = run("verify", NAME, "--json")
    assert done.returncode == 0
    (report,) = json.loads(done.stdout)
    numbers = report["claims"][0]["numbers"]
    assert numbers["clean_found"] - numbers["clean_claimed"] == numbers["clean_difference"] == 0


def test_one_models_error_does_not_stop_the_others():
    done = run("verify", NAME, "missing", NAME, "--json")
    first, error, second = json.loads(done.stdout)
    assert done.returncode == 2 and first == second and first["outcome"] == "consistent"
    assert (error["name"], error["error"], error["exit_code"]) == ("missing", "UnknownName", 2)
    text = run("verify", NAME, "missing", NAME)
    assert text.returncode == 2 and text.stdout.count("CONSISTENT by replay") == 2
    assert "missing" in text.stderr and "Traceback" not in text.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_log_that_fails_comes_after_the_report():
    done = run("verify", NAME, "--log", "/dev/full")
    assert done.returncode == 2 and "CONSISTENT by replay" in done.stdout
    assert "the log /dev/full cannot be written" in done.stderr and "Traceback" not in done.stderr
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", "from robustzoo.cli import main; main()", "verify", NAME]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "cannot be written" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments", [("a" * 300,), ("a/" + "a" * 300,), (NAME, "--card", "a" * 300), (NAME, "--log", "a" * 300)]
)
def test_names_that_no_file_system_takes_are_bad_input(arguments):
    done = run("verify", *arguments)
    assert done.returncode == 2 and done.stderr.startswith("robustzoo: ") and "Traceback" not in done.stderr


FAST = ("--n", "6", "--protocol", "pgd-2")


def test_shards_are_merged_by_the_command(tmp_path):
    for shard in ("2/2", "1/2"):
        done = CliRunner().invoke(
            group, ["evaluate", NAME, *FAST, "--shard", shard, "--out", str(tmp_path / "parts")]
        )
        assert done.exit_code == 0, done.output
    merged = CliRunner().invoke(
        group, ["evidence", "merge", str(tmp_path / "parts"), "--out", str(tmp_path / "whole")]
    )
    assert merged.exit_code == 0 and "robust accuracy" in merged.output
    single = CliRunner().invoke(group, ["evaluate", NAME, *FAST, "--out", str(tmp_path / "single")])
    assert single.exit_code == 0
    (one,), (other,) = (sorted((tmp_path / f / "evidence").glob("*.json")) for f in ("whole", "single"))
    documents = [json.loads(path.read_text()) for path in (one, other)]
    for document in documents:
        del document["run"]
    assert documents[0] == documents[1]
    with pytest.raises(ValueError, match=r"shard 1 of 2 is missing"):
        CliRunner().invoke(
            group,
            ["evidence", "merge", str(tmp_path / "parts" / "shard-2-of-2"), "--out", str(tmp_path / "no")],
            catch_exceptions=False,
        )


def test_a_curve_and_a_table_of_threat_models(tmp_path):
    curve = CliRunner().invoke(group, ["evaluate", NAME, *FAST, "--epsilons", "1/10,1/20", "--json"])
    document = json.loads(curve.stdout)
    assert [point["epsilon"] for point in document["points"]] == ["1/20", "1/10"]
    several = ["--threat-model", "linf:1/20", "--threat-model", "l2:1/2"]
    table = CliRunner().invoke(group, ["evaluate", NAME, *FAST, *several, "--out", str(tmp_path)])
    assert "all of them" in table.stdout and (tmp_path / "l2-1_2" / "evidence").is_dir()
    both = CliRunner().invoke(group, ["evaluate", NAME, *several, "--epsilons", "1/10"])
    assert both.exit_code == 2 and "one --threat-model" in both.output


def test_a_curve_draws_a_picture_beside_its_table(tmp_path):
    out = tmp_path / "curve"
    arguments = ["evaluate", NAME, *FAST, "--epsilons", "1/10,1/20", "--out", str(out)]
    assert CliRunner().invoke(group, arguments, catch_exceptions=False).exit_code == 0
    drawn = (out / "curve-linf.png").read_bytes()
    assert drawn.startswith(b"\x89PNG") and json.loads((out / "curve-linf.json").read_text())["points"]
    assert CliRunner().invoke(group, arguments, catch_exceptions=False).exit_code == 0
    assert (out / "curve-linf.png").read_bytes() == drawn
