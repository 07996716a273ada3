"""The robust generalisation gap as a curve; the best checkpoint, kept and exported; stopping early."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from robustzoo.errors import RobustzooError
from robustzoo.models import read_folder
from robustzoo.registry import recipe
from robustzoo.training import processes
from robustzoo.training.__main__ import export
from robustzoo.training.checkpoints import NO_READING, Best
from robustzoo.training.data import open_training_data
from robustzoo.training.export import export_run
from robustzoo.training.plan import make_plan
from robustzoo.training.run_folder import RunFolder
from robustzoo.training.validation import Validation, affordable
from tests.training.plain_pytorch import largest_difference
from tests.training.small import AT_TRH, small

ARGUMENTS = [AT_TRH, *small(total_steps=6), "--validate-every", "1", "--checkpoint-every", "2"]


@pytest.fixture
def readings(monkeypatch):
    """Held-out robust accuracies that the validations of a training give, in their order."""

    def give(*accuracies: float) -> None:
        left = list(accuracies)

        def run(self, model):
            return {"pgd10_accuracy": left.pop(0)}

        monkeypatch.setattr(Validation, "run", run)

    return give


def test_the_best_of_the_readings():
    best = NO_READING
    for step, accuracy in enumerate((0.0, 0.5, 0.5, 0.4), start=1):
        best = best.after(step, accuracy)
    assert best == Best(2, 0.5, 2)
    assert best.stops(2) and not best.stops(3) and not best.stops(None)


def test_the_gap_is_a_curve(train, tmp_path):
    assert train([*ARGUMENTS, "--max-steps", "2", "--out", str(tmp_path / "run")]) == 0
    for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert record["robust_gap"] == record["train_pgd10_accuracy"] - record["pgd10_accuracy"]
        assert record["train_pgd10_accuracy"] <= record["train_clean_accuracy"] <= 1


def test_as_many_training_images_as_held_out_ones(train, monkeypatch):
    """Both kinds together cost at most a tenth of the attacks between two readings."""
    data = open_training_data(make_plan([AT_TRH]))
    validation = Validation(data, processes.start(), 7, every=10)
    assert len(validation.holdout) == len(validation.training) == 20  # the limit that tests have
    assert validation.training.dataset.split == "train" and validation.holdout.dataset.split == "holdout"
    plan = recipe("vit_micro2.digits_linf.at_base")
    monkeypatch.setattr("robustzoo.training.validation.LARGEST", 10**6)
    monkeypatch.setattr("robustzoo.training.validation.STEPS", 10)
    every = 600
    assert 2 * affordable(plan, every) * 10 <= every * plan.batch_size * plan.attack_steps / 10


@pytest.mark.parametrize(("ranks", "size"), [(1, 5), (2, 5), (3, 5), (4, 3)])
def test_every_rank_makes_as_many_passes(train, monkeypatch, ranks, size):
    """In ZeRO 3 a rank with a batch less would leave the others waiting; no image counts twice."""
    monkeypatch.setattr("robustzoo.training.validation.LARGEST", size)
    data = open_training_data(make_plan([AT_TRH, "--batch-size", "1"]))
    group, batches, counted = processes.start(), [], []
    for rank in range(ranks):
        here = replace(group, rank=rank, world_size=ranks)
        validation = Validation(data, here, 2, every=10**6)
        share = list(validation._share(validation.holdout))
        batches.append([len(x) for x, *_ in share])
        counted += [i for _, _, ids, counts in share for i in ids[counts].tolist()]
    assert all(sizes == batches[0] for sizes in batches)
    assert sorted(counted) == validation.holdout.indices


def test_the_best_checkpoint_is_kept_and_exported(train, tmp_path, weights, readings, capsys):
    readings(0.1, 0.2, 0.3, 0.25, 0.3, 0.2)
    run = RunFolder(tmp_path / "run")
    assert train([*ARGUMENTS, "--out", str(run.path)]) == 0
    said = capsys.readouterr().err
    assert f"highest after step 3 (0.3000): python -m robustzoo.training export {run.path} --best" in said
    kept = sorted(path.name for path in run.checkpoints.glob("step_*"))
    assert kept == ["step_00000003", "step_00000004", "step_00000006"]  # the best and the newest two
    assert run.best(6) == Best(3, 0.3, 3)

    readings(0.1, 0.2, 0.3)
    third = tmp_path / "third"
    assert train([*ARGUMENTS, "--max-steps", "3", "--out", str(third)]) == 0
    assert export([str(run.path), "--best"]) == 0
    assert largest_difference(weights(run.model_best), weights(third / "model")) == 0
    assert read_folder(run.model_best).recipe.stop_after == 3
    assert largest_difference(weights(run.model), weights(run.model_best)) > 0


def test_stopped_early_and_resumed(train, tmp_path, weights, readings, capsys):
    """The count of readings without gain goes on after a resume; a run that has stopped stays so."""
    arguments = [*ARGUMENTS, "--early-stopping", "2"]
    readings(0.1, 0.3, 0.2, 0.3, 0.9)
    assert train([*arguments, "--out", str(tmp_path / "whole")]) == 0
    words = "--early-stopping 2 ends the run: 2 readings without a higher robust accuracy than after step 2\n"
    assert words in capsys.readouterr().err
    assert RunFolder(tmp_path / "whole").latest_step() == 4
    assert read_folder(tmp_path / "whole/model").recipe.stop_after == 4

    cut = [*arguments, "--checkpoint-every", "1", "--out", str(tmp_path / "cut")]
    readings(0.1, 0.3, 0.2)
    assert train([*cut, "--max-steps", "3"]) == 0
    readings(0.3, 0.9)
    assert train([*cut, "--resume"]) == 0
    assert RunFolder(tmp_path / "cut").latest_step() == 4
    readings()  # none is asked for
    assert train([*cut, "--resume"]) == 0
    assert largest_difference(weights(tmp_path / "cut/model"), weights(tmp_path / "whole/model")) == 0


def test_the_best_checkpoint_is_gone(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.begin({"fixed": {}, "recipe": recipe(AT_TRH).to_json()})
    for step in (1, 2):
        run.writing(step).mkdir()
        run.commit(step, Best(1, 0.5))
    run.checkpoint(1).rename(tmp_path / "elsewhere")
    with pytest.raises(RobustzooError, match=r"step_00000001, is not there; restore it, or leave out --best"):
        export_run(run, best=True)


def test_no_best_without_a_reading(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.begin({"fixed": {}, "recipe": recipe(AT_TRH).to_json()})
    with pytest.raises(RobustzooError, match="has no checkpoint; train first"):
        export_run(run, best=True)
    run.writing(2).mkdir()
    run.commit(2)
    with pytest.raises(RobustzooError, match="has no validation yet, and so no best checkpoint; train on"):
        export_run(run, best=True)
