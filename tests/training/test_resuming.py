"""A resumed run against its beginning: judged from its folder, before torch is loaded, without a training."""

from __future__ import annotations

import json
import sys
from hashlib import sha256

import pytest
from safetensors.numpy import save

from robustzoo import atomic_files
from robustzoo.errors import RobustzooError
from robustzoo.registry import recipe
from robustzoo.registry.recipes import partial
from robustzoo.training.checkpoints import NO_READING, Best
from robustzoo.training.plan import make_plan
from robustzoo.training.run_folder import RunFolder, hash_file
from tests.training.small import AT_TRH, TRADES_TRH, small
from tests.training.test_plan import RANK, program

STEPS = 4
BEGUN = [AT_TRH, *small(STEPS)]


def begin(path, steps: int, best: Best = NO_READING, flags: tuple[str, ...] = (), images: int | None = None):
    """A run folder as train.py leaves it after so many steps, with a checkpoint of a few bytes."""
    plan = make_plan([*BEGUN, *flags, "--out", str(path)])
    begun, made = plan.run, partial(plan.recipe, images=images)
    data = {"training_images": images or 1147, "training_data_digest": "d" * 64}
    path.mkdir()
    begun.begin({"fixed": plan.fixed(made) | data, "recipe": made.to_json()})
    if steps:
        begun.writing(steps).mkdir()
        (begun.writing(steps) / "weights.pt").write_bytes(b"w")
        begun.commit(steps, best)
    return begun


def export(begun: RunFolder, steps: int) -> None:
    """The parts of a model folder by which a finished export is known."""
    made = partial(make_plan(BEGUN).recipe, steps=steps)
    begun.model.mkdir()
    (begun.model / "config.json").write_text(json.dumps({"robustzoo": {"recipe": made.to_json()}}))
    (begun.model / "model.safetensors").touch()


def judge(begun: RunFolder, *flags: str, arguments=BEGUN) -> str | None:
    return make_plan([*arguments, "--resume", "--out", str(begun.path), *flags]).finished


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--seed", "7"], "seed was 0, now 7"),
        (["--zero", "2"], "zero_stage was 1, now 2"),
        (["--micro-batch", "4"], "micro_batch_size was 8, now 4"),
        (["--precision", "bf16"], "precision was 'float32', now 'bf16'"),
        (["--skip-corrupt"], "skip_corrupt was False, now True"),
        (["--set", "trh_lambda=0.5"], r"recipe .*\+.* then, .* now; trh_lambda was 0.01, now 0.5\. Start"),
        (["--max-steps", "1"], "has 2 steps done already, more than the 1 asked for: leave --max-steps out"),
    ],
)
def test_other_flags_are_refused(tmp_path, flags, words):
    with pytest.raises(RobustzooError, match=words):
        judge(begin(tmp_path / "run", 2), *flags)


def test_another_run_and_other_processes_are_refused(tmp_path, monkeypatch):
    begun = begin(tmp_path / "run", 2)
    with pytest.raises(RobustzooError, match="loss was 'at', now 'trades'"):
        judge(begun, arguments=[TRADES_TRH, *small(STEPS)])
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(save({}))
    with pytest.raises(RobustzooError, match=r"initial_weights was 'random', now '.*weights\.safetensors'"):
        judge(begun, "--init", str(weights))
    for name, value in RANK["0"].items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RobustzooError, match="micro_batch_size was 8, now 4; processes was 1, now 2"):
        judge(begun)


@pytest.mark.parametrize(
    "damage",
    [
        {"fixed": 1},
        {"fixed": {}},
        {"recipe": []},
        {"recipe": {}},
        {"recipe": {"training_images": "x"}},
        {"recipe": recipe(TRADES_TRH).to_json()},
    ],
)
def test_a_damaged_configuration_is_refused(tmp_path, damage):
    begun = begin(tmp_path / "run", 2)
    begun.config.write_text(json.dumps(json.loads(begun.config.read_text()) | damage))
    with pytest.raises(RobustzooError, match=r"config\.json .*damaged.*begin a new run in another --out"):
        judge(begun)
    with pytest.raises(RobustzooError, match=r"config\.json .*damaged.*begin a new run in another --out"):
        begun.check({"fixed": {}}, STEPS, resume=True)  # on several machines the only judge


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is held on Windows")
@pytest.mark.parametrize("resume", [False, True])
def test_a_training_that_came_in_between_is_seen_once_the_folder_is_held(tmp_path, resume):
    """Both have checked; the other one trains and ends before this one holds the folder."""
    first = begin(tmp_path / "first", 2)
    settings = first.settings()
    second = RunFolder(tmp_path / ("first" if resume else "new"))
    done = second.check(settings, STEPS, resume=resume)
    other = RunFolder(second.path)
    other.claim(settings, STEPS, done, resume=resume)
    with pytest.raises(RobustzooError, match="another process is training in"):
        second.claim(settings, STEPS, done, resume=resume)
    other.begin(settings)
    other.writing(STEPS).mkdir()
    other.commit(STEPS)
    other.release()
    words = "4 steps are done now, 2 were then; start again, with --resume" if resume else "run with --resume"
    with pytest.raises(RobustzooError, match=words):
        second.claim(settings, STEPS, done, resume=resume)
    RunFolder(second.path).hold()  # let go again


def test_an_unfinished_run_goes_on(tmp_path):
    assert judge(begin(tmp_path / "none", 0)) is None
    assert judge(begin(tmp_path / "two", 2)) is None
    assert judge(begin(tmp_path / "part", 2, images=500)) is None  # which part, the data tell
    (tmp_path / "weights.safetensors").write_bytes(save({}))
    file = ("--init", str(tmp_path / "weights.safetensors"))
    assert judge(begin(tmp_path / "file", 2, flags=file), *file) is None


def test_a_finished_run_is_told_once_its_model_is_there(tmp_path):
    begun = begin(tmp_path / "run", STEPS)
    assert judge(begun) is None  # the export is still to be done
    export(begun, STEPS)
    assert judge(begun).startswith(f"nothing to resume: {begun.path} has done its 4 steps, and its model is")
    (begun.model / "model.safetensors").unlink()
    assert judge(begun) is None


def test_a_finished_run_whose_model_is_broken_is_no_finished_run(tmp_path):
    begun = begin(tmp_path / "run", STEPS)
    export(begun, STEPS)
    weights = begun.model / "model.safetensors"
    weights.write_bytes(b"weights")
    known = sha256(b"weights").hexdigest()
    hash_file(begun.model).write_text(f"{known}  model/model.safetensors\n")
    assert judge(begun).startswith("nothing to resume")
    weights.write_bytes(b"wEights")
    with pytest.raises(RobustzooError, match=r"not those that were exported.*training export .*run`"):
        judge(begun)


def test_a_model_of_fewer_steps_is_exported_again(tmp_path):
    begun = begin(tmp_path / "run", 2)
    export(begun, 2)
    assert judge(begun) is None
    assert judge(begun, "--max-steps", "2") is not None
    begun.writing(STEPS).mkdir()
    begun.commit(STEPS)
    assert judge(begun) is None


def test_a_run_that_stopped_early_stays_so(tmp_path):
    begun = begin(tmp_path / "run", 3, Best(1, 0.5, 2))
    export(begun, 3)
    assert "was ended by --early-stopping after" in judge(begun, "--early-stopping", "2")
    assert judge(begun, "--early-stopping", "3") is None


def test_before_torch_is_loaded(subprocess_environment, tmp_path):
    begun = begin(tmp_path / "run", STEPS)
    export(begun, STEPS)
    before = sorted(tmp_path.rglob("*"))
    status, said = program(subprocess_environment, tmp_path, *BEGUN, "--out", "run", "--resume")
    assert status == 0 and "nothing to resume: run has done" in said
    status, said = program(subprocess_environment | RANK["0"], tmp_path, *BEGUN, "--out", "run", "--resume")
    assert status == 2 and "processes was 1, now 2" in said
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.skipif(sys.platform == "win32", reason="nothing is held on Windows")
def test_a_run_in_progress_is_refused(tmp_path):
    begun = begin(tmp_path / "run", 2)
    held = atomic_files.hold(begun.path)
    with pytest.raises(RobustzooError, match=r"another process is training in .*run; wait for it"):
        judge(begun)
    held.close()
    assert judge(begun) is None
