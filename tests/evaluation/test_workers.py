"""A worker that cannot start, fails or is killed is an error in words, and no process is left behind."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from robustzoo.attacks.answers import NonFiniteLogits
from robustzoo.data import TensorSource
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.engine import Work
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.ledger import Ledger
from robustzoo.evaluation.prepare import ask, prepare
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.workers import attacked, device_of_worker, run_in_workers
from robustzoo.registry import ThreatModel

X = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.zeros(8, dtype=torch.int64)


def work() -> Work:
    data = TensorSource(X, Y, num_classes=10)
    return Work(data, "pgd-2", ThreatModel.parse("linf:1/100"), 10, 0, 4, "cpu")


def ledger(work: Work) -> Ledger:
    attacks = [attack.name for attack in work.protocol.attacks]
    return Ledger(range(len(work.dataset)), attacks, work.micro_batch_size)


def test_a_model_that_pickle_refuses_is_explained(tmp_path):
    class Local(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1))

    with pytest.raises(RobustzooError, match="workers=1"):
        evaluate(Local(64, 10).eval(), (X, Y), "linf:0.1", "pgd-2", workers=2, out=tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


def test_a_script_without_the_main_guard_is_told_and_runs_nothing_twice(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch, robustzoo\n"
        "model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()\n"
        "data = torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])\n"
        "robustzoo.evaluate(model, data, 'linf:0.1', 'pgd-2', workers=2, progress=False, out='out')\n"
        "print('went on')\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 1 and done.stdout == ""
    assert "RobustzooError: this process is a worker of an evaluation" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "RobustzooError: robustzoo worker" in last and "under `if __name__ == '__main__':`" in last
    assert not list(tmp_path.rglob("*.json"))


def test_a_script_on_standard_input_is_told_to_become_a_file(tmp_path):
    script = (
        "import torch, robustzoo\n"
        "if __name__ == '__main__':\n"
        "    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()\n"
        "    data = torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])\n"
        "    robustzoo.evaluate(model, data, 'linf:0.1', 'pgd-2', workers=2, progress=False)\n"
    )
    done = subprocess.run(
        [sys.executable], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=1200
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "'<stdin>', which worker processes cannot import; expected a file: save the script" in last


NOTEBOOK = (
    "import torch, robustzoo\n"
    "class Mine(torch.nn.Sequential):\n"
    "    pass\n"
    "data = torch.rand(4, 1, 2, 2), torch.tensor([0, 1, 0, 1])\n"
    "for kind in (torch.nn.Sequential, Mine):\n"
    "    model = kind(torch.nn.Flatten(), torch.nn.Linear(4, 2)).eval()\n"
    "    robustzoo.evaluate(model, data, 'linf:0.1', 'pgd-2', workers=2, progress=False)\n"
    "    print('done')\n"
)


def test_a_class_of_a_notebook_is_refused_at_once_and_an_importable_one_works():
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, timeout=1200)
    last = done.stderr.strip().splitlines()[-1]
    assert "Mine is defined in a notebook" in last and "`from mine import Mine`, or use workers=1" in last
    assert done.stdout == "done\n"


class Meeting(nn.Module):
    """A classifier that in the calling process waits for a worker process to have begun.

    fails: "here" (at once), "there" or nowhere.
    """

    def __init__(
        self, network: nn.Module, sign: Path, fails: str = "", error: type[BaseException] = ValueError
    ) -> None:
        super().__init__()
        self.network, self.sign, self.fails, self.error = network, sign, fails, error

    def forward(self, x):
        here = multiprocessing.parent_process() is None
        if not here:
            self.sign.touch()
        if self.fails == ("here" if here else "there"):
            raise self.error("not in this process")
        while not self.sign.exists():
            time.sleep(0.01)
        return self.network(x)


def share(model: nn.Module, work: Work, record=lambda findings: None, workers: int = 2) -> Ledger:
    """What `workers` find; the findings go on to `record` too."""
    book = ledger(work)

    def enter(findings) -> None:
        for found in findings:
            book.add(found)
        record(findings)

    run_in_workers(model, model, work, book, workers, enter)
    return book


def robust_work(linear) -> Work:
    """The images with the labels that the model gives them, attacked by so little that none breaks."""
    with torch.no_grad():
        labels = linear(X).argmax(1)
    return replace(
        work(),
        dataset=TensorSource(X, labels, num_classes=10),
        protocol_name="pgd-20000",
        threat_model=ThreatModel.parse("linf:1/10000"),
    )


@pytest.fixture
def nothing_is_left() -> Callable[[], bool]:
    """Tells that no process is left, and no thread that was not there before the test."""
    before = set(threading.enumerate())
    return lambda: not multiprocessing.active_children() and set(threading.enumerate()) <= before


def test_models_that_refuse_to_be_sent_are_told(linear):
    normed = copy.deepcopy(linear)
    nn.utils.parametrizations.spectral_norm(normed[1])
    for model in (normed.eval(), torch.jit.script(linear)):
        with pytest.raises(RobustzooError, match=r"(?s)cannot be sent to worker processes .* use workers=1"):
            share(model, work())


def test_a_daemon_process_is_told_why_it_has_no_workers(linear, monkeypatch):
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)
    with pytest.raises(RobustzooError, match=r"a daemon .* use workers=1"):
        share(linear, work())


def test_a_failing_worker_process_passes_its_traceback_on(linear, tmp_path, nothing_is_left):
    model = Meeting(linear, tmp_path / "begun", "there")
    with pytest.raises(RobustzooError, match=r"(?s)worker 1 failed.*ValueError: not in this process"):
        share(model, robust_work(linear))
    assert nothing_is_left()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, *(pytest.param(e, marks=pytest.mark.slow) for e in (ValueError, SystemExit))]
)
def test_what_the_model_raises_in_the_calling_process_is_raised(linear, error, tmp_path, nothing_is_left):
    with pytest.raises(error, match="not in this process"):
        share(Meeting(linear, tmp_path / "begun", "here", error), robust_work(linear))
    assert nothing_is_left()


def test_logits_that_are_no_numbers_are_told_as_in_one_process(linear, nothing_is_left):
    x, steep = X.clone(), copy.deepcopy(linear)
    x[:, :, 0, :2] = 0
    x[5, :, 0, :2] = 1
    with torch.no_grad():
        steep[1].weight[0, :2] = 3e38  # the sum of two is infinite
    bad = replace(work(), dataset=TensorSource(x, Y, num_classes=10))
    with pytest.raises(NonFiniteLogits, match="sample 5;"):
        share(steep, bad)
    assert nothing_is_left()


def test_a_killed_worker_is_reported_and_the_others_are_stopped(linear, tmp_path, nothing_is_left):
    def kill_one(findings) -> None:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    with pytest.raises(RobustzooError, match=r"worker \d was killed by SIGKILL"):
        share(Meeting(linear, tmp_path / "begun"), robust_work(linear), kill_one, workers=3)
    assert nothing_is_left()


@pytest.mark.parametrize("when", ["at work", "waiting for an answer"])
def test_an_error_while_dealing_stops_the_callers_own_share(linear, when, nothing_is_left):
    calls = []

    def fail(findings) -> None:
        calls.append(findings)
        if when == "at work" or len(calls) > 1:
            raise RuntimeError("the disk is full")

    job = robust_work(linear) if when == "at work" else replace(work(), protocol_name="pgd-2")
    with pytest.raises(RuntimeError, match="the disk is full"):
        share(linear, job, fail)
    assert nothing_is_left()


class Endless(nn.Module):
    """A classifier whose fourth forward takes for ever, and tells Ctrl-C to this process."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.calls = network, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 4:
            os.kill(os.getpid(), signal.SIGINT)
            while True:
                time.sleep(0.01)
        return self.network(x)


def test_ctrl_c_ends_a_forward_without_end(linear, nothing_is_left):
    model = Endless(linear)
    with pytest.raises(KeyboardInterrupt):
        share(model, robust_work(linear))
    assert model.calls == 4
    assert nothing_is_left()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads are counted in /proc")
def test_the_calling_process_computes_with_one_thread(tmp_path):
    """More would give other last bits. torch says 1 of a thread whose OpenMP would still take all cores, but
    whoever computes with two has begun a second one."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, torch, robustzoo\n"
        "threads = lambda: len(os.listdir('/proc/self/task'))\n"
        "class Wide(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.first, self.last = torch.nn.Linear(4, 1000), torch.nn.Linear(1000, 1000)\n"
        "        self.begun = set()\n"
        "    def forward(self, x):\n"
        "        before = threads()\n"
        "        logits = self.last(self.first(x.flatten(1)))\n"
        "        self.begun.add(threads() - before)\n"
        "        return logits\n"
        "if __name__ == '__main__':\n"
        "    model, x = Wide().eval(), torch.rand(600, 1, 2, 2)\n"
        "    data = x, model(x).argmax(1)\n"
        "    model.begun.clear()\n"
        "    robustzoo.evaluate(model, data, 'linf:0.01', 'pgd-2', micro_batch_size=300, workers=2,\n"
        "                       progress=False)\n"
        "    print(model.begun)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.stdout.strip() == "{0}", done.stderr


def test_workers_take_a_gpu_each_unless_one_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of_worker("cuda", i) for i in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [device_of_worker(device, 1) for device in ("cuda:0", "cpu")] == ["cuda:0", "cpu"]


def test_images_may_be_attacked_outside_of_an_evaluation(linear):
    with torch.no_grad():
        labels = linear(X).argmax(1)
    labels[3] = (labels[3] + 1) % 10
    tiny = ThreatModel.parse("linf:1/99999")
    few = TensorSource(X, labels, num_classes=10)
    with prepare(linear, few, ask(linear, tiny, "apgd-ce")) as ready:
        assert attacked(ready.sized(3), [6, 3, 1], 1, Reporter(False))[0] == [1, 6]
