"""The command line: what each flag becomes, and usage errors in words."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from robustzoo.errors import RobustzooError
from robustzoo.training.arguments import parse

NAME = "vit_micro2.digits_linf.at_trh"


def test_defaults():
    job = parse([NAME, "--out", "run"])
    assert (job.name, job.out, job.data, job.zero_stage, job.seed) == (NAME, Path("run"), None, 1, 0)
    assert (job.overrides, job.init_file, job.micro_batch_size, job.max_steps) == ({}, None, None, None)
    assert not job.resume
    assert job.recipe().name == NAME


def test_an_unknown_dataset_before_a_folder_is_named(tmp_path):
    with pytest.raises(RobustzooError, match=r"'cifar10jpeg' is no dataset.*Did you mean cifar10jpg"):
        parse([NAME, "--out", "run", "--data", f"cifar10jpeg:{tmp_path}"])


def test_the_launchers_flag_is_accepted():
    assert parse(["--local_rank=1", NAME, "--out", "run"]).name == NAME


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (["--set", "trh_lambda=1e-4"], "trh_lambda", 1e-4),
        (["--batch-size", "32"], "batch_size", 32),
        (["--set", "epochs=2", "--batch-size", "1297"], "total_steps", 2),
    ],
)
def test_science_changes_the_recipe_and_its_name(flags, field, value):
    # `epochs` gives 2 steps, fewer than the warm-ups have.
    short = ["--set", "warmup_steps=1", "--set", "attack_warmup_steps=1"]
    changed = parse([NAME, "--out", "run", *short, *flags]).recipe()
    assert getattr(changed, field) == value
    assert changed.base_name == NAME and changed.name == f"{NAME}+{changed.digest[:8]}"


@pytest.mark.parametrize(
    "flags", [["--zero", "2"], ["--micro-batch", "4"], ["--max-steps", "9"], ["--seed", "1"]]
)
def test_hardware_does_not(flags):
    assert parse([NAME, "--out", "run", *flags]).recipe().name == NAME


@pytest.mark.parametrize(
    ("given", "overrides", "file"),
    [
        ("recipe", {}, None),
        ("random", {"init": "random"}, None),
        ("a.safetensors", {}, Path("a.safetensors")),
    ],
)
def test_initial_weights(given, overrides, file):
    job = parse([NAME, "--out", "run", "--init", given])
    assert (job.overrides, job.init_file, job.initial_weights) == (overrides, file, None)


def test_a_local_file_is_a_change_of_the_recipe(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"weights")
    for given in (weights, tmp_path):
        job = parse([NAME, "--out", "run", "--init", str(given)])
        assert job.initial_weights == weights
        assert job.recipe().init == f"file:{sha256(b'weights').hexdigest()}"
        assert job.recipe().name != NAME


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--zero", "4"], "expected a ZeRO stage 0, 1, 2 or 3, got '4'"),
        (["--zero", "x"], "expected a ZeRO stage 0, 1, 2 or 3, got 'x'"),
        (["--max-steps", "0"], "at least 1, got '0'"),
        (["--micro-batch", "-4"], "micro-batch"),
        (["--seed", "1.5"], "whole number from 0"),
    ],
)
def test_usage_errors(flags, words, capsys):
    out = ["--out", "run"]
    with pytest.raises(SystemExit) as stop:
        parse([NAME, *out, *flags])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [("base_lr", "is not KEY=VALUE"), ("base_lrr=1", "base_lr"), ("base_lr=high", "base_lr")],
)
def test_bad_changes(text, words):
    with pytest.raises(RobustzooError, match=words):
        parse([NAME, "--out", "run", "--set", text]).recipe()
