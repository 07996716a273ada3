"""A worker that cannot start, fails or is killed is an error in words, and no process is left behind."""

from __future__ import annotations

import copy
import multiprocessing
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from robustzoo.attacks.answers import NonFiniteLogits
from robustzoo.data import TensorSource
from robustzoo.evaluation.attack_run import robust_ids
from robustzoo.evaluation.evaluator import evaluate
from robustzoo.evaluation.ledger import Ledger
from robustzoo.evaluation.progress import Reporter
from robustzoo.evaluation.work import Work
from robustzoo.evaluation.workers import WorkerError, device_of_worker, run_in_workers
from robustzoo.registry import ThreatModel

X = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.zeros(8, dtype=torch.int64)


def work() -> Work:
    data = TensorSource(X, Y, num_classes=10)
    return Work(data, "pgd-2", ThreatModel.parse("linf:1/100"), 10, 0, 4, "cpu")


def ledger(work: Work) -> Ledger:
    attacks = [member.attack for member in work.protocol.members]
    return Ledger(range(len(work.dataset)), attacks, work.micro_batch_size)


def test_a_model_that_pickle_refuses_is_explained(tmp_path):
    class Local(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1))

    with pytest.raises(WorkerError, match="workers=1"):
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
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1 and done.stdout == ""
    assert "WorkerError: this process is a worker of an evaluation" in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "WorkerError: robustzoo worker" in last and "under `if __name__ == '__main__':`" in last
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_a_failing_worker_passes_its_traceback_on(linear):
    few_classes = replace(work(), num_classes=3, dataset=TensorSource(X, Y + 5, num_classes=10))
    with pytest.raises(WorkerError, match=r"(?s)worker 0 failed.*ValueError: sample 0 has label 5"):
        run_in_workers(linear, few_classes, ledger(few_classes), 1, lambda findings: None)
    assert not multiprocessing.active_children()


def test_logits_that_are_no_numbers_are_told_as_in_one_process(linear):
    x, steep = X.clone(), copy.deepcopy(linear)
    x[:, :, 0, :2] = 0
    x[5, :, 0, :2] = 1
    with torch.no_grad():
        steep[1].weight[0, :2] = 3e38  # the sum of two is infinite
    bad = replace(work(), dataset=TensorSource(x, Y, num_classes=10))
    with pytest.raises(NonFiniteLogits, match="sample 5;"):
        run_in_workers(steep, bad, ledger(bad), 1, lambda findings: None)
    assert not multiprocessing.active_children()


def test_a_killed_worker_is_reported_and_the_others_are_stopped(linear):
    def kill_one(findings) -> None:
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)

    with torch.no_grad():
        labels = linear(X).argmax(1)
    long = replace(
        work(),
        dataset=TensorSource(X, labels, num_classes=10),
        protocol_name="pgd-20000",
        threat_model=ThreatModel.parse("linf:1/10000"),
    )
    with pytest.raises(WorkerError, match="killed by SIGKILL"):
        run_in_workers(linear, long, ledger(long), 2, kill_one)
    assert not multiprocessing.active_children()


def test_workers_take_a_gpu_each_unless_one_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [device_of_worker("cuda", i) for i in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert [device_of_worker(device, 1) for device in ("cuda:0", "cpu")] == ["cuda:0", "cpu"]


def test_images_may_be_attacked_outside_of_an_evaluation(linear):
    with torch.no_grad():
        labels = linear(X).argmax(1)
    labels[3] = (labels[3] + 1) % 10
    tiny = ThreatModel.parse("linf:1/99999")
    few = replace(work(), dataset=TensorSource(X, labels, num_classes=10), threat_model=tiny)
    assert robust_ids(linear, few, [6, 3, 1], 1, Reporter(False)) == [1, 6]
