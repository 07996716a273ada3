"""What goes wrong while training: a clear end, no half checkpoint, and a line that resumes the very run."""

from __future__ import annotations

import gc
import re
import resource
import signal
import sys

import pytest
from PIL import Image

from robustzoo.data import DataError, TrainingOrder, evaluation_subset, load_dataset
from robustzoo.data.readers.digits import Digits
from robustzoo.training import __main__ as programs
from robustzoo.training import export, zero
from robustzoo.training.data import ReadableImages
from robustzoo.training.metrics import Metrics
from robustzoo.training.run_folder import RunFolder
from tests.training.plain_pytorch import largest_difference
from tests.training.ranks import start_ranks
from tests.training.small import AT_TRH, ROOT, small

ARGUMENTS = [AT_TRH, *small(), "--checkpoint-every", "2"]


@pytest.fixture
def whole(trained, weights):
    """Weights of the training that nothing happens to."""
    return weights(trained(*ARGUMENTS) / "model")


def ends_in_words(train, capsys, run, *words: str, step: int) -> None:
    """Train into `run`; assert status 1, these words, no half checkpoint, and that the run may be resumed."""
    capsys.readouterr()
    assert train([*ARGUMENTS, "--out", str(run.path)]) == 1
    said = capsys.readouterr().err
    error, kept, resume = said[said.index("error: ") :].splitlines()
    assert all(word in error for word in words), error
    assert kept == (
        f"kept: {run.checkpoint(step)}" if step else "kept: no checkpoint yet, so that it starts anew"
    )
    assert resume.startswith("resume: python ") and resume.endswith(" --resume")
    assert run.latest_step() == step
    assert not list(run.checkpoints.glob(".*")) and not run.model.exists()


@pytest.fixture
def full_disk():
    """Inside the block no file grows beyond these bytes: writing more fails as on a full disk."""

    class Limit:
        def __init__(self, size: int) -> None:
            self.size = size

        def __enter__(self) -> None:
            self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.size, self.before[1]))

        def __exit__(self, *error) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, self.before)

    return Limit


@pytest.mark.parametrize(
    ("owner", "name", "size", "step", "words"),
    [
        (zero, "save_state", 100_000, 2, "the checkpoint after step 4 could not be written in"),
        (RunFolder, "commit", 10, 2, "the checkpoint after step 4 could not be written in"),
        (export, "write_folder", 100_000, 4, "cannot"),
    ],
)
def test_a_full_disk(
    train, tmp_path, capsys, monkeypatch, weights, whole, full_disk, owner, name, size, step, words
):
    run, original = RunFolder(tmp_path / "run"), getattr(owner, name)
    calls = []

    def on_a_full_disk(*args, **kwargs):
        calls.append(name)
        if len(calls) < (2 if step == 2 else 1):
            return original(*args, **kwargs)
        with full_disk(size):
            return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, on_a_full_disk)
        ends_in_words(train, capsys, run, words, step=step)
    assert train([*ARGUMENTS, "--out", str(run.path), "--resume"]) == 0
    assert largest_difference(weights(run.model), whole) == 0


def test_a_full_disk_under_the_log(train, tmp_path, capsys, monkeypatch, weights, whole, full_disk):
    run = RunFolder(tmp_path / "run")
    write = Metrics.write

    def on_a_full_disk(self, step, **values):
        if step < 3:
            return write(self, step, **values)
        with full_disk(10):
            return write(self, step, **values)

    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "write", on_a_full_disk)
        ends_in_words(train, capsys, run, "cannot write or read: ", step=2)
    assert train([*ARGUMENTS, "--out", str(run.path), "--resume"]) == 0
    assert largest_difference(weights(run.model), whole) == 0


def test_a_broken_image_in_the_middle_of_an_epoch(train, tmp_path, capsys, monkeypatch, weights, whole):
    """Also what a missing shard or file is to a run: an error of the data that names the place."""
    run, image = RunFolder(tmp_path / "run"), Digits._image
    images = load_dataset("digits", split="train")
    validated = evaluation_subset(images, 20).indices  # these are read before the first step
    of_the_last_step = set(TrainingOrder(len(images), 8, seed=0).batch(3)[1].tolist()) - set(validated)

    def read(self, i):
        if self.split == "train" and i in of_the_last_step:
            raise DataError(f"image {i}, /data/train/{i}.png: no readable image")
        return image(self, i)

    with monkeypatch.context() as patch:
        patch.setattr(Digits, "_image", read)
        ends_in_words(train, capsys, run, "/data/train/", ".png: no readable image", step=2)
    assert train([*ARGUMENTS, "--out", str(run.path), "--resume"]) == 0
    assert largest_difference(weights(run.model), whole) == 0


def test_a_broken_image_is_passed_over_where_that_is_asked_for(train, tmp_path, capsys, monkeypatch):
    image = Digits._image
    used = load_dataset("digits", split="train")

    def read(self, i):
        if self.split == "train" and i % 200 == 7:
            raise DataError(f"image {i}, /data/train/{i}.png: no readable image")
        return image(self, i)

    monkeypatch.setattr(Digits, "_image", read)
    everything = ["--set", "epochs=1", "--batch-size", "1147"]
    short = ["--set", "warmup_steps=1", "--set", "attack_warmup_steps=1", "--set", "attack_steps=1"]
    arguments = [AT_TRH, *short, *everything, "--out", str(tmp_path / "run")]
    assert train(arguments) == 1
    assert train([*arguments, "--skip-corrupt", "--resume"]) == 2  # another run
    arguments[-1] = str(tmp_path / "skipping")
    assert train([*arguments, "--skip-corrupt"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("skipped")]
    assert len(said) == len(range(7, len(used), 200))
    assert said[0].startswith("skipped, the next readable image stands in: image ")


def test_stand_ins(tmp_path):
    """Real files: 100 images in ten folders, one of them cut short, then two of them."""
    for label in range(10):
        (tmp_path / f"train/{label}").mkdir(parents=True)
        for number in range(10):
            color = (25 * label, 25 * number, 0)
            Image.new("RGB", (32, 32), color).save(tmp_path / f"train/{label}/{number}.png")
    images = load_dataset("cifar10jpg", tmp_path, "train")
    broken = tmp_path / "train/3/5.png"
    broken.write_bytes(broken.read_bytes()[:40])
    i = next(i for i in range(len(images)) if images._names[i] == b"3/5.png")
    readable = ReadableImages(images)
    assert readable[i][1] == images[i + 1][1] and (readable[i][0] == images[i + 1][0]).all()
    assert len(readable) == len(images) and list(readable.skipped) == [i]
    assert str(broken) in readable.skipped[i]
    (tmp_path / "train/3/6.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"2 of 90 images cannot be read.*3/6\.png"):
        readable[i]


def test_a_missing_shard_is_refused_before_anything_is_written(train, tmp_path, capsys):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train-00000-of-00002.parquet").touch()
    arguments = ["vit_ti4.cifar10jpg_linf.at_trh", "--data", str(tmp_path / "data")]
    assert train([*arguments, "--out", str(tmp_path / "run")]) == 2
    assert "train-00001-of-00002.parquet" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_rank_that_dies(tmp_path):
    run = RunFolder(tmp_path / "run")
    arguments = [*ARGUMENTS, "--checkpoint-every", "1", "--out", str(run.path)]
    command = [sys.executable, str(ROOT / "tests/training/dying_rank.py"), *arguments]
    first, second = start_ranks(2, command, tmp_path)
    assert second.wait() == -signal.SIGKILL
    assert first.wait(timeout=1200) == 1
    said = (tmp_path / "said0").read_text()
    assert "error: another of the 2 processes has ended" in said
    assert f"kept: {run.checkpoint(2)}\nresume: with the launcher of before: " in said
    assert not list(run.checkpoints.glob(".*")) and "Traceback" not in said


def test_other_errors_keep_their_traceback_and_tell_how_to_go_on(train, tmp_path, capsys, monkeypatch):
    def broken(*args):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(zero, "backward", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        train([*ARGUMENTS, "--out", str(tmp_path / "run")])
    assert capsys.readouterr().err.endswith(" --resume\n")


def signal_in_third_step(patch, number: int) -> None:
    """Have this process get a signal before the weights of its third step are updated."""
    step, calls = zero.optimizer_step, []

    def signalled(engine):
        calls.append(engine)
        if len(calls) == 3:
            signal.raise_signal(number)
        return step(engine)

    patch.setattr(zero, "optimizer_step", signalled)


def test_a_scheduler_that_ends_the_run(train, tmp_path, capsys, monkeypatch, weights, whole):
    """SIGTERM, as on a preemption: status 143, and how to go on."""
    run, before = RunFolder(tmp_path / "run"), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        signal_in_third_step(patch, signal.SIGTERM)
        status = train([*ARGUMENTS, "--out", str(run.path)])
    gc.collect()
    assert status == 143 and signal.getsignal(signal.SIGTERM) == before
    words = f"error: ended by SIGTERM, the signal of a scheduler\nkept: {run.checkpoint(2)}\nresume: python "
    assert words in capsys.readouterr().err
    assert train([*ARGUMENTS, "--out", str(run.path), "--resume"]) == 0
    assert largest_difference(weights(run.model), whole) == 0


def test_ctrl_c(train, tmp_path, capsys, monkeypatch):
    run = RunFolder(tmp_path / "run")
    signal_in_third_step(monkeypatch, signal.SIGINT)
    assert train([*ARGUMENTS, "--out", str(run.path)]) == 130
    words = f"error: interrupted\nkept: {run.checkpoint(2)}\nresume: python "
    assert words in capsys.readouterr().err


def test_weights_that_are_no_numbers_after_the_last_step(train, tmp_path, capsys):
    """The loss of that step is one: it was computed before the update."""
    run = RunFolder(tmp_path / "run")
    huge = ["--set", "base_lr=1e30", "--max-steps", "1"]
    assert train([*ARGUMENTS, *huge, "--out", str(run.path)]) == 1
    said = capsys.readouterr().err
    assert re.search("error: not finite at step 1: .*, l2 (inf|nan) after the update, gradient norm", said)
    assert run.latest_step() is None and not run.model.exists()
    assert "Infinity" not in run.metrics.read_text() and "NaN" not in run.metrics.read_text()


def test_a_checkpoint_with_other_bytes_is_refused(train, tmp_path, capsys):
    run = RunFolder(tmp_path / "run")
    assert train([*ARGUMENTS, "--max-steps", "2", "--out", str(run.path)]) == 0
    before = sorted(run.model.iterdir()), (run.model / "model.safetensors").read_bytes()
    (file,) = run.checkpoint(2).glob("mp_rank_00_model_states.pt")
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 100] = bytes(byte ^ 0xFF for byte in content[middle : middle + 100])
    file.write_bytes(content)
    words = f"error: {file} is damaged: it has not the sha256 it was written with; restore it, or delete"
    capsys.readouterr()
    assert programs.export([str(run.path)]) == 2 and words in capsys.readouterr().err
    assert train([*ARGUMENTS, "--max-steps", "3", "--out", str(run.path), "--resume"]) == 2
    assert words in capsys.readouterr().err
    assert (sorted(run.model.iterdir()), (run.model / "model.safetensors").read_bytes()) == before


def test_a_full_disk_while_exporting_names_the_folder(train, tmp_path, capsys, full_disk):
    run = RunFolder(tmp_path / "run")
    assert train([*ARGUMENTS, "--max-steps", "2", "--out", str(run.path)]) == 0
    capsys.readouterr()
    with full_disk(1000):
        assert programs.export([str(run.path)]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"error: {run.path} cannot be read, or its model written: ") and len(said) < 400
    assert (run.model / "model.safetensors").stat().st_size > 1000
