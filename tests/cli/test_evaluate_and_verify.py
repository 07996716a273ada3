"""`robustzoo evaluate` and `verify`: with --json errors are JSON too, with the exit code of the text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from robustzoo.cli import group
from robustzoo.registry import entry

NAME = "vit_micro2.digits_linf.at_base"
FLIPPED = "FLIPPED"  # stands for a folder with a witness file of other bytes


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


def test_without_json_errors_are_text_with_the_same_exit_code(flipped, ended):
    code, out, said = ended("verify", str(flipped))
    assert (code, out) == (2, "")
    assert said.startswith("robustzoo: ") and "expected sha256" in said
    assert "found    sha256" in said and "Next: restore the witness file" in said
    code, _, said = ended("verify", NAME, "--mode", "quick")
    assert code == 2 and "Invalid value for '--mode'" in said


def test_one_models_error_does_not_stop_the_others(ended):
    code, out, _ = ended("verify", NAME, "missing", NAME, "--json")
    first, error, second = json.loads(out)
    assert code == 2 and first == second and first["outcome"] == "consistent"
    numbers = first["claims"][0]["numbers"]
    assert numbers["clean_found"] - numbers["clean_claimed"] == numbers["clean_difference"] == 0
    assert (error["name"], error["error"], error["exit_code"]) == ("missing", "UnknownName", 2)
    code, out, said = ended("verify", NAME, "missing", NAME)
    assert code == 2 and out.count("CONSISTENT by replay") == 2
    assert "missing" in said and "Traceback" not in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_log_that_fails_comes_after_the_report(ended):
    code, out, said = ended("verify", NAME, "--log", "/dev/full")
    assert code == 2 and "CONSISTENT by replay" in out
    assert "the log /dev/full cannot be written" in said and "Traceback" not in said


@pytest.mark.parametrize(
    "arguments", [("a" * 300,), ("a/" + "a" * 300,), (NAME, "--card", "a" * 300), (NAME, "--log", "a" * 300)]
)
def test_names_that_no_file_system_takes_are_bad_input(arguments, ended):
    code, _, said = ended("verify", *arguments)
    assert code == 2 and said.startswith("robustzoo: ") and "Traceback" not in said


FAST = ("--n", "6", "--protocol", "pgd-2")


def test_shards_are_merged_by_the_command(tmp_path, ended):
    parts, whole, single = (str(tmp_path / name) for name in ("parts", "whole", "single"))
    for shard in ("2/2", "1/2"):
        assert ended("evaluate", NAME, *FAST, "--shard", shard, "--out", parts)[0] == 0
    code, out, _ = ended("evidence", "merge", parts, "--out", whole)
    assert code == 0 and "robust accuracy" in out
    assert ended("evaluate", NAME, *FAST, "--out", single)[0] == 0
    (one,), (other,) = (sorted(Path(place, "evidence").glob("*.json")) for place in (whole, single))
    documents = [json.loads(path.read_text()) for path in (one, other)]
    for document in documents:
        del document["run"]
    assert documents[0] == documents[1]
    part = Path(parts, "shard-2-of-2")
    code, _, said = ended("evidence", "merge", str(part), "--out", str(tmp_path / "no"))
    assert code == 2 and "shard 1 of 2 is missing" in said
    (file,) = part.glob("evidence/*.json")
    assert ended("report", str(file))[1].startswith("PART OF A RESULT")
    code, _, said = ended("compare", str(file), str(one))
    assert code == 2 and "a part of an evaluation and no result" in said


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
