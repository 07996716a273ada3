"""train.py in one process: like plain PyTorch, exact in accumulation, resume and export, clear in refusal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from robustzoo.data import load_dataset
from robustzoo.errors import RobustzooError
from robustzoo.models import read_folder
from robustzoo.models.pixel_model import pixel_model
from robustzoo.objectives.objective import Objective
from robustzoo.registry import recipe
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.recipes import partial
from robustzoo.training import __main__ as programs
from robustzoo.training import export
from robustzoo.training.plan import make_plan
from robustzoo.training.run_folder import RunFolder
from tests.training.plain_pytorch import largest_difference, plain_pytorch
from tests.training.small import AT_TRH, NO_ATTACK, ROOT, SGD, TRADES_TRH, small

ONE_STEP = [AT_TRH, *small(), "--max-steps", "1"]


@pytest.mark.parametrize("stage", ["0", "2"])  # every other one, and more of them: test_layouts, slow
def test_equals_plain_pytorch(train, tmp_path, weights, stage):
    arguments = [TRADES_TRH, *small(), *SGD]
    assert train([*arguments, "--out", str(tmp_path / "run"), "--zero", stage]) == 0
    by_hand = plain_pytorch(arguments)
    torch.manual_seed(0)
    assert largest_difference(by_hand, pixel_model(recipe(TRADES_TRH)).network.state_dict()) > 1e-2
    assert largest_difference(weights(tmp_path / "run/model"), by_hand) < 1e-5


def test_equals_plain_pytorch_with_adam(train, tmp_path, weights):
    adam = ["--set", "optimizer=adam", "--set", "base_lr=0.001", "--set", "trh_gamma=0.001"]
    arguments = [AT_TRH, *small(), *adam]
    assert train([*arguments, "--out", str(tmp_path / "run"), "--zero", "1"]) == 0
    exported, by_hand = weights(tmp_path / "run/model"), plain_pytorch(arguments)
    for state in (exported, by_hand):
        for name, bias in state.items():
            if name.endswith("qkv.bias"):
                # Softmax cancels the keys' bias: its gradient is rounding, which Adam scales up.
                bias[len(bias) // 3 : 2 * len(bias) // 3] = 0
    assert largest_difference(exported, by_hand) < 1e-4


# TRADES starts its attack where the gradient is nearly zero: rounding decides the sign of some pixels, and
# micro-batches differ by 1e-5 through the attack alone. Here epsilon is out of its way; AT has its usual one.
@pytest.mark.parametrize(
    ("name", "stage", "changes"),
    [(AT_TRH, "0", []), (AT_TRH, "2", []), (TRADES_TRH, "1", NO_ATTACK)],
)
def test_accumulation_changes_nothing(train, tmp_path, weights, name, stage, changes):
    exported = []
    for micro in ("8", "2"):
        arguments = [*SGD, *changes, "--micro-batch", micro, "--zero", stage, "--out", str(tmp_path / micro)]
        assert train([name, *small(), *arguments]) == 0
        exported.append(weights(tmp_path / micro / "model"))
    assert largest_difference(*exported) < 1e-6


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize(
    "where", [pytest.param(">&- 2>&-", marks=pytest.mark.slow), ">/dev/full 2>/dev/full"]
)
def test_a_training_goes_on_when_nobody_reads_what_it_says(subprocess_environment, tmp_path, where):
    run = tmp_path / "run"
    command = [sys.executable, str(ROOT / "training/train.py"), AT_TRH, *small(), "--out", str(run)]
    done = subprocess.run(["sh", "-c", f'"$0" "$@" {where}', *command], env=subprocess_environment)
    assert done.returncode == 0 and (run / "model/model.safetensors").is_file()


def test_the_run_folder_says_everything(train, tmp_path, capsys):
    run = tmp_path / "run"
    extra = ["--out", str(run), "--validate-every", "2", "--checkpoint-every", "2", "--max-steps", "3"]
    assert train([AT_TRH, *small(), *extra]) == 0
    said = capsys.readouterr().err
    assert "3 steps of 8 images, each 2 (F + B) + T = 7 F" in said
    assert "stopped after 3 of 4 steps: the model is vit_micro2.digits_linf.at_trh+" in said
    assert "left 0:00:00" in said and sha256_file(run / "model/model.safetensors") in said
    known = f"{sha256_file(run / 'model/model.safetensors')}  model/model.safetensors\n"
    assert (run / "model.sha256").read_text() == known

    plan = make_plan([AT_TRH, *small()]).recipe
    settings = json.loads((run / "config.json").read_text())
    assert settings["recipe"] == plan.to_json()
    assert settings["fixed"]["recipe_digest"] == plan.digest
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 3]
    assert ["pgd10_accuracy" in record for record in records] == [False, True, True]
    for record in records:
        assert record["total"] == pytest.approx(record["robust"] + record["trh"], rel=1e-6)
        assert record["trh"] == pytest.approx(record["trh_lambda"] * record["trace"], rel=1e-6)
        assert {"l2", "gradient_norm", "learning_rate", "images_per_second"} <= record.keys()
    assert RunFolder(run).latest_step() == 3

    model = read_folder(run / "model")
    assert model.recipe == partial(plan, steps=3) and model.name != plan.name


def test_only_training_images_are_touched(train, tmp_path, monkeypatch):
    splits = []

    def recorded(key, root=None, split="test"):
        splits.append(split)
        return load_dataset(key, root, split)

    monkeypatch.setattr("robustzoo.training.data.load_dataset", recorded)
    assert train([AT_TRH, *small(), "--max-steps", "1", "--out", str(tmp_path / "run")]) == 0
    assert sorted(splits) == ["holdout", "train"]


@pytest.mark.parametrize(
    ("moment", "stage"),
    [
        ("before the first checkpoint", "1"),
        ("in a step", "0"),
        ("in a step", "1"),
        ("while a checkpoint is written", "1"),
    ],
)
def test_interrupted_and_resumed(train, trained, tmp_path, monkeypatch, capsys, stage, moment):
    arguments = [TRADES_TRH, *small(), "--zero", stage, "--checkpoint-every", "2"]
    unbroken = trained(*arguments)

    class Killed(Exception):
        pass

    calls = {"terms": 0, "commit": 0}
    doomed = {"before the first checkpoint": ("terms", 2), "in a step": ("terms", 3)}.get(
        moment, ("commit", 2)
    )

    def dying(owner, name):
        original = getattr(owner, name)

        def call(self, *args, **kwargs):
            calls[name] += 1
            if (name, calls[name]) == doomed:
                raise Killed
            return original(self, *args, **kwargs)

        return call

    out = ["--out", str(tmp_path / "killed")]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Objective, "terms", dying(Objective, "terms"))
        patch.setattr(RunFolder, "commit", dying(RunFolder, "commit"))
        train([*arguments, *out])
    capsys.readouterr()
    assert train([*arguments, *out, "--resume"]) == 0
    at_zero = moment == "before the first checkpoint"
    where = "at step 0, for there is no checkpoint yet:" if at_zero else "after step 2:"
    assert f"resuming {where}" in capsys.readouterr().err
    for file in ("model/model.safetensors", "model/config.json"):
        assert sha256_file(tmp_path / "killed" / file) == sha256_file(unbroken / file)
    logs = [(run / "metrics.jsonl").read_text().splitlines() for run in (tmp_path / "killed", unbroken)]
    killed, whole = ([{**json.loads(line), "images_per_second": 0} for line in log] for log in logs)
    assert killed == whole


def test_killed_minus_nine(train, tmp_path, subprocess_environment):
    arguments = [AT_TRH, *small(total_steps=20), "--checkpoint-every", "1"]
    run = RunFolder(tmp_path / "killed")
    command = [sys.executable, str(ROOT / "training/train.py"), *arguments, "--out", str(run.path)]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, env=subprocess_environment, stderr=said, cwd=tmp_path)
        while process.poll() is None and (run.latest_step() or 0) < 3:
            time.sleep(0.01)
        process.kill()
        assert process.wait() == -signal.SIGKILL, (tmp_path / "said").read_text()
    assert 3 <= run.latest_step() < 20
    assert train([*arguments, "--out", str(run.path), "--resume"]) == 0
    assert train([*arguments, "--out", str(tmp_path / "whole")]) == 0
    model = "model/model.safetensors"
    assert sha256_file(run.path / model) == sha256_file(tmp_path / "whole" / model)


def test_export_stands_alone(train, tmp_path, capsys):
    run = tmp_path / "run"
    assert train([AT_TRH, *small(), "--max-steps", "2", "--out", str(run)]) == 0
    digest = sha256_file(run / "model/model.safetensors")
    for path in (run / "model").iterdir():
        path.unlink()
    assert programs.export([str(run)]) == 0
    assert digest in capsys.readouterr().out
    assert sha256_file(run / "model/model.safetensors") == digest
    assert programs.export([str(tmp_path)]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_export_notices_other_logits(tmp_path, monkeypatch):
    plan = recipe(AT_TRH)
    model = pixel_model(plan)
    monkeypatch.setattr(export, "read_folder", lambda folder, sha256: pixel_model(plan))
    with pytest.raises(RobustzooError, match=f"read back gives other logits.*export {tmp_path}"):
        export.export_model(tmp_path / "model", plan, model.state_dict())


def test_divergence_stops_and_names_the_last_good_checkpoint(train, tmp_path, capsys):
    arguments = ["--out", str(tmp_path / "run"), "--checkpoint-every", "1", "--set", "base_lr=1e12"]
    assert train([TRADES_TRH, *small(warmup_steps=0), *arguments]) == 1
    error = capsys.readouterr().err
    good = RunFolder(tmp_path / "run").latest_step()
    assert f"not finite at step {good + 1}" in error and "in a new run\nkept: " in error
    assert f"kept: {RunFolder(tmp_path / 'run').checkpoint(good)}\n" in error
    assert not (tmp_path / "run/model").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [([], "is not empty; continue its run"), (["--resume", "--seed", "7"], "seed was 0, now 7")],
)
def test_a_run_is_not_continued_as_another(train, trained, capsys, changes, words):
    run = trained(*ONE_STEP)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    assert train([*ONE_STEP, "--out", str(run), *changes]) == 2
    assert words in capsys.readouterr().err.splitlines()[-1]
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


def test_a_longer_run_of_the_same_recipe(train, trained, tmp_path, weights):
    grown = [AT_TRH, *small(), "--out", str(tmp_path / "grown")]
    assert train([*grown, "--max-steps", "2"]) == 0
    assert train([*grown, "--max-steps", "4", "--resume"]) == 0
    straight = trained(AT_TRH, *small(), "--max-steps", "4")
    assert largest_difference(weights(tmp_path / "grown/model"), weights(straight / "model")) == 0


def test_a_batch_larger_than_the_data_is_refused(train, tmp_path, capsys):
    arguments = [AT_TRH, "--batch-size", "1200", "--out", str(tmp_path / "run")]
    assert train(arguments) == 2
    assert "a batch of 1,200 is more than the 1,147 training images" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_port_in_use_is_told(monkeypatch, train, tmp_path, capsys):
    def taken(**flags):
        raise torch.distributed.DistNetworkError("The server socket has failed. EADDRINUSE, port 29500")

    monkeypatch.setattr("robustzoo.training.processes.dist.is_initialized", lambda: False)
    monkeypatch.setattr("robustzoo.training.processes.deepspeed.init_distributed", taken)
    assert train([AT_TRH, *small(), "--out", str(tmp_path / "run")]) == 2
    assert "is in use" in (said := capsys.readouterr().err) and "--master_port" in said
