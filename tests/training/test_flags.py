"""The command line: what each flag becomes, and which of them make another recipe."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from safetensors.numpy import save

from robustzoo.training.flags import read
from robustzoo.training.plan import make_plan
from tests.training.small import AT_TRH


def test_defaults():
    flags = read([AT_TRH, "--out", "run"])
    assert (flags.name, flags.out, flags.zero_stage, flags.seed) == (AT_TRH, Path("run"), 1, 0)
    assert flags.overrides == {} and not flags.resume
    assert {flags.data, flags.init_file, flags.micro_batch_size, flags.max_steps} == {None}
    plan = make_plan([AT_TRH])
    assert plan.recipe.name == AT_TRH and plan.run.path == Path("runs", AT_TRH)


def test_the_launchers_flag_is_accepted():
    assert read(["--local_rank=1", AT_TRH, "--out", "run"]).name == AT_TRH


@pytest.mark.parametrize(
    ("flags", "field", "value"),
    [
        (["--set", "trh_lambda=1e-4"], "trh_lambda", 1e-4),
        (["--batch-size", "32"], "batch_size", 32),
        (["--set", "epochs=2", "--batch-size", "1297"], "total_steps", 2),
        (["--init", "random"], "init", "random"),
    ],
)
def test_science_changes_the_recipe_and_its_name(flags, field, value):
    # `epochs` gives 2 steps, fewer than the warm-ups have.
    short = ["--set", "warmup_steps=1", "--set", "attack_warmup_steps=1"]
    changed = make_plan([AT_TRH, "--out", "run", *short, *flags]).recipe
    assert getattr(changed, field) == value
    assert changed.base_name == AT_TRH and changed.name == f"{AT_TRH}+{changed.digest[:8]}"


@pytest.mark.parametrize(
    "flags", [["--zero", "2"], ["--micro-batch", "4"], ["--max-steps", "9"], ["--seed", "1"]]
)
def test_hardware_does_not(flags):
    assert make_plan([AT_TRH, "--out", "run", *flags]).recipe.name == AT_TRH


def test_a_local_file_is_a_change_of_the_recipe(tmp_path):
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(save({}))
    for given in (weights, tmp_path):
        made = make_plan([AT_TRH, "--out", "run", "--init", str(given)]).recipe
        assert made.init == f"file:{sha256(weights.read_bytes()).hexdigest()}" and made.name != AT_TRH


@pytest.mark.parametrize(("steps", "every"), [(40, 2), (8, 1)])
def test_a_twentieth_of_the_recipe_where_nothing_is_asked_for(steps, every):
    short = ["--set", f"total_steps={steps}", "--set", "warmup_steps=1", "--set", "attack_warmup_steps=1"]
    plan = make_plan([AT_TRH, *short])
    assert (plan.last_step, plan.checkpoint_every, plan.validate_every) == (steps, every, every)
    assert make_plan([AT_TRH, *short, "--max-steps", "1"]).validate_every == 1
