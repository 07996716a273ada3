"""Memory: it does not grow with the number of images, and where it runs out the micro-batch is halved."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from robustzoo import load
from robustzoo.errors import RobustzooError
from robustzoo.evaluation import machine, micro_batch
from robustzoo.evaluation.evaluate import evaluate

EPS = "linf:1/20"


class Small(nn.Module):
    """A classifier that runs out of memory beyond `limit` images a batch, from its `after`-th call on."""

    def __init__(self, network: nn.Module, limit: int, after: int = 0) -> None:
        super().__init__()
        self.network, self.limit, self.after, self.calls = network, limit, after, 0
        self.eval()

    def forward(self, x):
        self.calls += 1
        if len(x) > self.limit and self.calls > self.after:
            raise torch.OutOfMemoryError("simulated")
        return self.network(x)


def run(model, size: int, **options):
    options = {"protocol": "apgd-ce", "n": 20, "progress": False, **options}
    return evaluate(model, "digits", EPS, micro_batch_size=size, **options)


def test_a_micro_batch_that_does_not_fit_is_halved_before_the_start(linear):
    events = []
    found = run(Small(linear, 4), 16, progress=events.append)
    assert found.doc["micro_batch_size"] == 4
    assert found.doc["samples"] == run(linear, 4).doc["samples"]
    assert any("micro-batch 16 does not fit into the memory of cpu: 4" in e.get("text", "") for e in events)


@pytest.mark.parametrize("after", [16, 18, 42, 132])
def test_samples_in_flight_are_redone_at_half_the_shape_and_say_so(linear, after):
    found = run(Small(linear, 4, after), 8).doc
    expected = {size: run(linear, size).doc["samples"] for size in (8, 4)}
    assert found["micro_batch_size"] == 8
    redone = 0
    for sample, large, small in zip(found["samples"], expected[8], expected[4], strict=True):
        stated = sample.pop("micro_batch_size", None)
        assert stated in (None, 4) and sample == (large if stated is None else small)
        redone += stated is not None
    assert 0 < redone <= 20


def test_memory_that_does_not_suffice_for_one_image_is_an_error_in_words(linear):
    with pytest.raises(RobustzooError, match="memory ran out on cpu with one image"):
        run(Small(linear, 0, after=20), 4)  # after the guards, which call it with 4 images
    with pytest.raises(RobustzooError, match="one image at a time"):
        run(Small(linear, 0, after=60), 4)


def test_what_is_out_of_memory_and_what_is_another_fault(linear):
    class Faulty(Small):
        def forward(self, x):
            self.calls += 1
            if self.calls > 40:
                raise RuntimeError("another fault")
            return self.network(x)

    with pytest.raises(RuntimeError, match="another fault"):
        run(Faulty(linear, 0), 4)


MEGA, GIGA, MIB = 10**6, 10**9, 2**20


@pytest.mark.parametrize(
    ("operations", "kept", "count", "kind", "size"),
    [
        (6.7 * MEGA, 0.2 * MIB, 500, "cpu", 64),  # the bundled networks, whose Evidence says 64
        (6.7 * MEGA, 0.2 * MIB, 50_000, "cpu", 64),
        (1.4 * MEGA, MIB // 25, 50_000, "cpu", 256),
        (0, 0, 50_000, "cpu", 256),
        (1.4 * MEGA, MIB // 25, 1_100, "cpu", 128),  # eight batches for the workers to share
        (1.4 * MEGA, MIB // 25, 200, "cpu", 64),
        (1.4 * MEGA, MIB // 25, 20, "cpu", 20),  # no more than there are
        (1.1 * GIGA, 10 * MIB, 10_000, "cpu", 64),  # a ResNet-18 for 32 pixels
        (8.2 * GIGA, 82 * MIB, 10_000, "cpu", 16),  # ResNet-50 at 224
        (33.7 * GIGA, 71 * MIB, 10_000, "cpu", 4),  # ViT-B at 224
        (33.7 * GIGA, 71 * MIB, 3, "cpu", 3),
        (MEGA, 100 * MIB, 10_000, "cpu", 16),
        (MEGA, 4096 * MIB, 10_000, "cpu", 1),
        (6.7 * MEGA, 0.2 * MIB, 50_000, "cuda", 4096),
        (6.7 * MEGA, 0.2 * MIB, 500, "cuda", 500),
        (1.1 * GIGA, 8 * MIB, 10_000, "cuda", 1024),
        (33.7 * GIGA, 71 * MIB, 10_000, "cuda", 64),
        (1000 * GIGA, 71 * MIB, 10_000, "cuda", 16),
    ],
)
def test_the_micro_batch_follows_from_what_an_image_costs(operations, kept, count, kind, size):
    assert micro_batch.micro_batch_for(int(operations), int(kept), count, kind) == size


def test_what_an_image_costs_is_counted_and_not_timed(linear, monkeypatch):
    monkeypatch.setattr(machine, "seconds_per_pass", lambda *_, **__: fail())
    costs = []
    monkeypatch.setattr(micro_batch, "micro_batch_for", lambda *cost: costs.append(cost) or 7)
    layers = nn.Flatten(), nn.Linear(64, 500), nn.ReLU(), nn.Linear(500, 10)
    model, x = nn.Sequential(*layers).requires_grad_(False), torch.rand(1, 8, 8)
    for each in (model, torch.jit.script(model)):
        assert micro_batch.find_micro_batch(each, x, 30, torch.device("cpu")) == 7
        assert costs.pop() == (2 * (64 * 500 + 500 * 10), 4 * 500, 30, "cpu")
    assert micro_batch.find_micro_batch(model, x, 30, torch.device("cpu"), gradients=False) == 7
    assert costs.pop()[1] == 0
    monkeypatch.setattr(micro_batch, "_kept_bytes", lambda *_: Small(linear, 0)(x))
    assert micro_batch.find_micro_batch(model, x, 30, torch.device("cpu")) == 1  # two do not fit


@pytest.mark.parametrize("options", [{}, {"shard": "1/2"}], ids=str)
def test_every_part_of_an_evaluation_chooses_the_same_micro_batch(linear, tmp_path, options):
    images = torch.rand(1030, 1, 8, 8), torch.zeros(1030, dtype=torch.int64)
    found = evaluate(linear, images, EPS, "pgd-1", progress=False, out=tmp_path, **options)
    assert found.doc["micro_batch_size"] == 128
    assert run(linear, None, n=100, protocol="pgd-1").doc["micro_batch_size"] == 64
    assert run(linear, None, n=10, protocol="pgd-1").doc["micro_batch_size"] == 10


@pytest.mark.parametrize("name", ["at_base", "at_trh", "trades_base", "trades_trh"])
def test_the_bundled_models_keep_the_micro_batch_of_their_evidence(name):
    model = load(f"vit_micro2.digits_linf.{name}")
    assert micro_batch.find_micro_batch(model, torch.rand(1, 8, 8), 500, torch.device("cpu")) == 64


@pytest.mark.parametrize(
    ("hidden", "each"),
    [(0, 8 * 256), (500, 8 * 256 + 2000)],  # 8 copies of an 8x8 image; what ReLU keeps of 500 units
    ids=["linear", "relu"],
)
def test_on_the_cpu_what_a_batch_keeps_is_added_up_before_it_is_asked_for(monkeypatch, hidden, each):
    layers = [nn.Linear(64, 10)] if not hidden else [nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)]
    model = nn.Sequential(nn.Flatten(), *layers).requires_grad_(False)
    monkeypatch.setattr(machine, "memory_bytes", lambda: 100 * each)
    x, cpu = torch.rand(1, 8, 8), torch.device("cpu")
    assert micro_batch.within_memory(model, x, 100, cpu) == 100
    assert micro_batch.within_memory(model, x, 101, cpu) == 50
    assert micro_batch.within_memory(model, x, 10**11, cpu) == 10**11 // 2**30
    assert micro_batch.within_memory(model, x, 100, cpu, processes=3) == 25
    assert micro_batch.within_memory(model, x, 101, torch.device("cuda")) == 101
    without = 100 * each // 2048
    assert micro_batch.within_memory(lambda x: fail(), x, without, cpu, gradients=False) == without


def fail():
    raise AssertionError("a forward that is not needed")


def test_a_batch_that_the_machine_cannot_hold_is_halved_and_said(linear, monkeypatch):
    monkeypatch.setattr(machine, "memory_bytes", lambda: 8 * 256 * 8)
    events = []
    found = run(linear, 64, progress=events.append)
    assert found.doc["micro_batch_size"] == 8
    assert any("micro-batch 64 does not fit into the memory of cpu: 8" in e.get("text", "") for e in events)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="peak memory is read from /proc")
@pytest.mark.parametrize("workers", [1, 2])
def test_memory_does_not_grow_with_the_number_of_images(shared, workers):
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "evaluation_memory.py"
    spec = importlib.util.spec_from_file_location("evaluation_memory", path)
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    few, many = (benchmark.measure(shared / "data" / "cifar10jpg", n, workers) for n in (200, 10_000))
    assert sum(many["counts"]["broken_by"].values()) > 5_000
    images = (10_000 - 200) * benchmark.IMAGE_BYTES
    assert (many["peak_kib"] - few["peak_kib"]) * 1024 - images <= 100e6
