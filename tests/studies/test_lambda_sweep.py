"""The lambda sweep: what it would train, what it keeps and refuses, and once from training to figure."""

from __future__ import annotations

import csv
import json
import subprocess

import pytest

from robustzoo.errors import RobustzooError
from robustzoo.studies.lambda_sweep import LAMBDAS, plan, run_sweep
from robustzoo.studies.lambda_sweep.runs import stored_result
from robustzoo.studies.lambda_sweep.sweep_results import COLUMNS, draw

SMALL = {"losses": ("at",), "lambdas": (1e-3,), "steps": 10, "seed": 0}


def row(percent: float) -> dict:
    values = dict.fromkeys(COLUMNS, 1.0) | {"images": 150, "model": "name"}
    values |= {"apgd_ce_percent": percent, "apgd_ce_low": percent - 3.0, "apgd_ce_high": percent + 3.0}
    return {key: value for key, value in values.items() if key not in ("loss", "lambda")}


def store(run, percent: float = 50.0, **changed) -> None:
    run.result.parent.mkdir(parents=True, exist_ok=True)
    run.result.write_text(json.dumps({**run.identity(), "row": row(percent), **changed}))


def test_the_paper_searched_values_are_the_default():
    assert LAMBDAS == (1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2)


def test_plan_changes_lambda_alone(tmp_path):
    runs = plan(tmp_path, losses=("at", "trades"), lambdas=(1e-2, 1e-3), steps=None, seed=0)
    assert [(r.loss, r.trh_lambda) for r in runs] == [
        ("at", 1e-3),
        ("at", 1e-2),
        ("trades", 1e-3),
        ("trades", 1e-2),
    ]
    assert runs[0].recipe().trh_lambda == 1e-3 and runs[0].overrides == {"trh_lambda": "0.001"}
    command = runs[0].command()
    assert command[3] == "vit_micro2.digits_linf.at_trh" and "--resume" not in command
    runs[0].folder.mkdir(parents=True)
    (runs[0].folder / "config.json").touch()  # begun before
    assert "--resume" in runs[0].command()
    assert len({r.folder for r in runs}) == 4
    near = plan(tmp_path, losses=("at",), lambdas=(1e-3, 1.0000001e-3), steps=None, seed=0)
    assert len({r.folder for r in near}) == 2


def test_fewer_steps_shrink_the_warm_ups(tmp_path):
    made = plan(tmp_path, losses=("at",), lambdas=(1e-3,), steps=12, seed=0)[0].recipe()
    assert (made.total_steps, made.warmup_steps, made.attack_warmup_steps) == (12, 1, 3)


def test_finished_runs_are_not_trained_again(tmp_path):
    runs = plan(tmp_path, **SMALL | {"lambdas": (1e-3, 1e-2)})
    for run, percent in zip(runs, (40.0, 60.0), strict=True):
        store(run, percent)
    rows = run_sweep(
        plan(tmp_path, **SMALL | {"lambdas": (1e-2, 1e-3)}),
        resume=True,
        trainer=("absent.py",),
        say=lambda _: None,
    )
    assert [(r["lambda"], r["apgd_ce_percent"]) for r in rows] == [(1e-3, 40.0), (1e-2, 60.0)]
    with (tmp_path / "lambda_sweep.csv").open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert list(table[0]) == list(COLUMNS) and [r["loss"] for r in table] == ["at", "at"]
    assert (tmp_path / "lambda_sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no result"),
        ("[]", "is no result"),
        ("{}", "is no result"),
        ('{"row": {}}', "another schema"),
    ],
)
def test_a_damaged_result_is_refused(tmp_path, content, message):
    run = plan(tmp_path, **SMALL)[0]
    run.result.parent.mkdir(parents=True)
    run.result.write_text(content)
    with pytest.raises(RobustzooError, match=message):
        stored_result(run)


def test_a_result_of_other_settings_is_refused(tmp_path):
    store(plan(tmp_path, **SMALL)[0])
    other = plan(tmp_path, **SMALL | {"steps": 11, "seed": 1})[0]
    with pytest.raises(RobustzooError, match="recipe_digest, seed"):
        stored_result(other)


def test_a_folder_in_use_needs_resume(tmp_path):
    store(plan(tmp_path, **SMALL)[0])
    with pytest.raises(RobustzooError, match="--resume"):
        run_sweep(plan(tmp_path, **SMALL))


def test_training_that_fails_shows_the_end_of_its_log(tmp_path):
    trainer = tmp_path / "train.py"
    trainer.write_text("import sys; print('error: no accelerator today'); sys.exit(2)")
    with pytest.raises(RobustzooError, match=r"(?s)status 2.*no accelerator today.*--resume"):
        run_sweep(plan(tmp_path / "out", **SMALL), trainer=(str(trainer),), say=lambda _: None)
    assert not (tmp_path / "out" / "lambda_sweep.csv").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"losses": ()}, "losses are"),
        ({"lambdas": (1e-3, 1e-3)}, "each once"),
        ({"lambdas": ()}, "expected at least one"),
        ({"lambdas": (0.0,)}, "lambda is 0; expected a finite number above 0.*another recipe"),
        ({"lambdas": (float("nan"),)}, "lambda is nan; expected a finite number above 0"),
        ({"lambdas": (float("inf"),)}, "lambda is inf; expected a finite number above 0"),
        ({"lambdas": (1e-3, -1.0)}, "lambda is -1; expected a finite number above 0"),
        ({"losses": ("at", "foo")}, "^'foo' is no loss; expected one or more of at, trades, alp, mart"),
        ({"losses": ("",)}, "'' is no loss"),
        ({"steps": 0}, "steps is 0"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, wrong, message):
    with pytest.raises(RobustzooError, match=message):
        plan(tmp_path / "out", **SMALL | wrong)
    assert not (tmp_path / "out").exists()


def test_figure_of_two_losses(tmp_path):
    rows = [
        {"loss": loss, "lambda": value, **row(50.0)} for loss in ("at", "trades") for value in (1e-3, 1e-2)
    ]
    first = draw(tmp_path / "a.png", rows).read_bytes()
    assert first == draw(tmp_path / "b.png", rows).read_bytes()


@pytest.mark.slow
def test_from_training_to_the_figure(tmp_path, monkeypatch):
    """Two lambdas, few steps, the project's training command; one run was interrupted and is resumed."""
    pytest.importorskip("deepspeed", reason="training needs the extra `train`")
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said: list[str] = []
    asked = {"losses": ("at",), "lambdas": (1e-3, 1e-1), "steps": 6}
    first = plan(tmp_path, losses=("at",), lambdas=(1e-3,), steps=6, seed=0)[0]
    subprocess.run([*first.command(), "--max-steps", "3"], check=True)
    rows = run_sweep(plan(tmp_path, **asked), resume=True, say=said.append)
    assert sum("training" in line for line in said) == 2
    assert "resuming after step 3" in first.log.read_text()
    assert [r["lambda"] for r in rows] == [1e-3, 1e-1]
    for found in rows:
        assert found["images"] == 150 and found["apgd_ce_percent"] <= found["clean_percent"]
        assert found["model"].startswith("vit_micro2.digits_linf.at_trh+")
        assert found["trace_top"] > 0.0 and found["trace_all_standard_error"] > 0.0
    assert (tmp_path / "lambda_sweep.png").is_file()
    assert run_sweep(plan(tmp_path, **asked), resume=True, say=said.append) == rows
    assert sum("training" in line for line in said) == 2
