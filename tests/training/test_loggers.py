"""The numbers of a run in TensorBoard and Weights & Biases too; what a training costs, before it begins."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from robustzoo.errors import RobustzooError
from robustzoo.training.plan import make_plan
from tests.training.small import AT_TRH, small


def metrics(run) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_wandb_gets_what_metrics_jsonl_gets(train, tmp_path, monkeypatch):
    """By a stand-in of its interface: the real one wants an account or writes for minutes."""
    logged, begun, ended = [], [], []

    def init(**settings):
        begun.append(settings)
        return SimpleNamespace(
            log=lambda values, step: logged.append({"step": step, **values}), finish=lambda: ended.append(1)
        )

    fake = SimpleNamespace(init=init, __spec__=SimpleNamespace(name="wandb"))
    monkeypatch.setitem(sys.modules, "wandb", fake)
    arguments = [AT_TRH, *small(), "--out", str(tmp_path / "run"), "--logger", "wandb"]
    assert train(arguments) == 0
    assert logged == metrics(tmp_path / "run") and len(logged) == 4 and ended == [1]
    assert begun[0]["project"] == "robustzoo" and begun[0]["config"]["total_steps"] == 4


def test_tensorboard_gets_what_metrics_jsonl_gets(train, tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert train([AT_TRH, *small(), "--out", str(tmp_path / "run"), "--logger", "tensorboard"]) == 0
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    written = metrics(tmp_path / "run")
    assert [event.step for event in found.Scalars("robust")] == [record["step"] for record in written]
    assert [event.value for event in found.Scalars("total")] == pytest.approx([r["total"] for r in written])


def test_a_logger_that_is_absent_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr("robustzoo.training.metrics.find_spec", lambda name: None)
    with pytest.raises(RobustzooError, match=r"robustzoo\[wandb\]"):
        make_plan([AT_TRH, "--logger", "wandb", "--out", str(tmp_path / "run")])
    assert not (tmp_path / "run").exists()


def test_an_estimate_says_what_it_costs_and_keeps_nothing(train, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("robustzoo.training.estimate.SECONDS", 0)
    assert train([AT_TRH, *small(total_steps=40), "--out", str(tmp_path / "run"), "--estimate"]) == 0
    said = capsys.readouterr().err
    assert "passes: 40 steps of 8 images" in said and "memory: " in said and "40 steps in 0:0" in said
    assert not (tmp_path / "run").exists()
