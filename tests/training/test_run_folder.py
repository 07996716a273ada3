"""Run folders: refused, begun, resumed; checkpoints whole or absent; a log without repeated steps."""

from __future__ import annotations

import json
import shutil

import pytest

from robustzoo.errors import RobustzooError
from robustzoo.registry import recipe
from robustzoo.training.metrics import Clock, Metrics, duration
from robustzoo.training.run_folder import RunFolder

RECIPE = recipe("vit_micro2.digits_linf.at_trh")
FIXED = {"seed": 0, "processes": 2, "recipe_digest": RECIPE.digest}
SETTINGS = {"command": "train", "fixed": FIXED, "recipe": RECIPE.to_json()}
LAST = 100


def write_checkpoint(run: RunFolder, step: int) -> None:
    run.writing(step).mkdir(parents=True)
    (run.writing(step) / "weights.pt").write_bytes(b"w" * step)


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    assert folder.check(SETTINGS, LAST, resume=False) == 0
    assert not folder.path.exists()  # checking writes nothing
    folder.begin(SETTINGS)
    return folder


def test_a_folder_in_use_needs_resume(run):
    with pytest.raises(RobustzooError, match="is not empty; continue its run with --resume"):
        run.check(SETTINGS, LAST, resume=False)
    assert run.check(SETTINGS, LAST, resume=True) == 0


def test_absent_and_empty_folders_start_at_zero_and_have_nothing_to_resume(tmp_path):
    (tmp_path / ".hidden").touch()
    for path in (tmp_path, tmp_path / "absent", tmp_path / "absent" / "deep"):
        assert RunFolder(path).check(SETTINGS, LAST, resume=False) == 0
        with pytest.raises(RobustzooError, match="has no run to resume; leave out --resume to start one"):
            RunFolder(path).check(SETTINGS, LAST, resume=True)


@pytest.mark.parametrize("resume", [False, True])
def test_where_no_folder_can_be(tmp_path, monkeypatch, resume):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "run" / "deep"):
        with pytest.raises(RobustzooError, match="file is a file; choose another --out"):
            RunFolder(path).check(SETTINGS, LAST, resume=resume)
    with pytest.raises(RobustzooError, match=r"nnn \(File name too long\); choose another --out"):
        RunFolder(tmp_path / ("n" * 300)).check(SETTINGS, LAST, resume=resume)

    def closed(*arguments):  # nothing is to the superuser
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.mkdir", closed)
    with pytest.raises(RobustzooError, match=r"run \(Permission denied\); choose another --out"):
        RunFolder(tmp_path / "run").check(SETTINGS, LAST, resume=resume)


def test_a_disk_that_refuses(tmp_path, monkeypatch):
    def full(path, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("robustzoo.atomic_files.write_text", full)
    with pytest.raises(RobustzooError, match="No space left on device; choose another --out"):
        RunFolder(tmp_path / "run").begin(SETTINGS)


def test_no_run_there(tmp_path):
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RobustzooError, match="not empty, and holds no run; choose another --out"):
        RunFolder(tmp_path).check(SETTINGS, LAST, resume=False)
    with pytest.raises(RobustzooError, match=r"no config\.json"):
        RunFolder(tmp_path).check(SETTINGS, LAST, resume=True)
    with pytest.raises(RobustzooError, match="is a file"):
        RunFolder(tmp_path / "thesis.tex").check(SETTINGS, LAST, resume=True)


def test_other_settings_are_refused_by_name(run):
    other = {"fixed": FIXED | {"seed": 1}}
    with pytest.raises(RobustzooError, match="seed was 0, now 1"):
        run.check(other, LAST, resume=True)
    assert run.check(SETTINGS | {"command": "another"}, LAST, resume=True) == 0


def test_the_newest_two_are_kept(run):
    for step in (5, 10, 15):
        write_checkpoint(run, step)
        run.commit(step)
        assert run.latest_step() == step
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        "latest",
        "step_00000010",
        "step_00000015",
    ]
    assert (run.checkpoints / "latest").read_text() == "step_00000015\n"


def test_an_unfinished_checkpoint_does_not_count_and_is_swept(run):
    write_checkpoint(run, 5)
    run.commit(5)
    write_checkpoint(run, 10)  # killed before the commit
    assert run.check(SETTINGS, LAST, resume=True) == 5
    run.begin(SETTINGS)
    assert not run.writing(10).exists() and run.checkpoint(5).exists()


@pytest.mark.parametrize("damage", ["cut", "absent", "no manifest"])
def test_a_damaged_checkpoint_is_named(run, damage):
    for step in (5, 10):
        write_checkpoint(run, step)
        run.commit(step)
    newest = run.checkpoint(10)
    if damage == "cut":
        (newest / "weights.pt").write_bytes(b"w" * 3)
        words = "weights.pt has 3 bytes and was written with 10"
    else:
        missing = "weights.pt" if damage == "absent" else "manifest.json"
        (newest / missing).unlink()
        words = "weights.pt is missing" if damage == "absent" else "it has no manifest.json"
    refused = (
        f"step_00000010 is damaged: {words}; restore it, or delete step_00000010 to go on from step_00000005"
    )
    with pytest.raises(RobustzooError, match=refused):
        run.check(SETTINGS, LAST, resume=True)
    assert run.latest_step() == 5
    newest.rename(newest.with_name("damaged"))
    assert run.check(SETTINGS, LAST, resume=True) == 5
    write_checkpoint(run, 10)
    run.commit(10)  # trained again from step 5
    assert run.check(SETTINGS, LAST, resume=True) == 10


def test_no_checkpoint_but_damaged_ones_is_no_beginning(run):
    for step in (5, 10):
        write_checkpoint(run, step)
        run.commit(step)
    for step in (5, 10):
        (run.checkpoint(step) / "weights.pt").unlink()
    with pytest.raises(RobustzooError, match="delete step_00000005 and step_00000010 to begin at step 0"):
        run.check(SETTINGS, LAST, resume=True)


def test_newer_damaged_checkpoints_do_not_push_out_the_one_just_written(run):
    for step in (5, 20, 30):
        write_checkpoint(run, step)
        run.commit(step, keep=3)
    for step in (20, 30):
        (run.checkpoint(step) / "weights.pt").unlink()
    for step, kept in (10, [5, 10, 20, 30]), (15, [10, 15, 20, 30]), (25, [15, 25, 30]), (30, [25, 30]):
        write_checkpoint(run, step)
        run.commit(step)
        assert [int(path.name[5:]) for path in sorted(run.checkpoints.glob("step_*"))] == kept
    assert run.check(SETTINGS, LAST, resume=True) == 30


@pytest.mark.parametrize(
    "name",
    [
        "step_00000001.bak",
        "step_old",
        "step_",
        "step_\u0661\u0661\u0661\u0661\u0661\u0661\u0661\u0661",
        "step_0000000009",
    ],
)
def test_folders_of_other_names_are_no_checkpoints(run, name):
    write_checkpoint(run, 5)
    run.commit(5)
    shutil.copytree(run.checkpoint(5), run.checkpoints / name)
    assert run.check(SETTINGS, LAST, resume=True) == 5
    write_checkpoint(run, 10)
    run.commit(10, keep=1)
    assert run.latest_step() == 10 and (run.checkpoints / name).is_dir()


@pytest.mark.parametrize(
    "text", ["[]", "", '{"files": {"weights.pt": {"bytes": "x"}}}', '{"files": {"a": 1}}']
)
def test_a_checkpoint_with_another_manifest_is_named(run, text):
    write_checkpoint(run, 5)
    run.commit(5)
    (run.checkpoint(5) / "manifest.json").write_text(text)
    for refuse in (run.newest_step, lambda: run.check_intact(5)):
        with pytest.raises(
            RobustzooError, match=r"step_00000005 is damaged: its manifest\.json cannot be read"
        ):
            refuse()


@pytest.mark.parametrize("text", ["[]", "{", '{"schema": "another"}'])
def test_a_foreign_configuration(run, text):
    run.config.write_text(text)
    with pytest.raises(RobustzooError, match=r"config\.json.*; restore it, or begin a new run"):
        run.check(SETTINGS, LAST, resume=True)


def test_the_log_is_cut_back_to_the_checkpoint(tmp_path):
    path = tmp_path / "metrics.jsonl"
    first = Metrics(path, 0)
    for step in (1, 2, 3, 4):
        first.write(step, total=float(step))
    first.close()
    lines = path.read_bytes().splitlines(keepends=True)
    strange = [b'{"step": 1, "\xff": 0}\n', b'{"total": 1.0}\n', b'{"step": "1"}\n', b"[]\n"]
    cut = b'{"step": 5, "to'  # killed in the middle of a line
    path.write_bytes(b"".join([*strange, *lines, cut]))
    second = Metrics(path, 2)
    second.write(3, total=-3.0)
    second.close()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(record["step"], record["total"]) for record in records] == [(1, 1.0), (2, 2.0), (3, -3.0)]


def test_clock(monkeypatch):
    now = iter([100.0, 104.0, 1000.0, 1003.0])
    monkeypatch.setattr("robustzoo.training.metrics.time.monotonic", lambda: next(now))
    clock = Clock(done_steps=10, last_step=20, batch_size=8)
    assert clock.read(12) == (4.0, 16.0)  # 2 s a step, 8 steps left
    clock.restart(12)
    assert clock.read(13) == (8 / 3, 21.0)


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00:00"), (59.6, "0:01:00"), (3725, "1:02:05")])
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_a_folder_is_kept_for_one_process(tmp_path):
    first, second = RunFolder(tmp_path / "run"), RunFolder(tmp_path / "run")
    first.hold()
    with pytest.raises(RobustzooError, match="another process is training in"):
        second.hold()
