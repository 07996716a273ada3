"""Reduced precision searches; strict float32 decides."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

from robustzoo.cards.passages import measured_on
from robustzoo.data import load_dataset
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.witnessing import margins
from robustzoo.reports.text import report

CPU = torch.device("cpu")


def run(model, **options):
    options = {"protocol": "apgd-ce+t", "n": 30, "micro_batch_size": 10, "progress": False, **options}
    return evaluate(model, "digits", "linf:1/10", **options)


def test_a_search_in_bf16_is_recorded_and_each_success_holds_in_float32(linear):
    found, strict = run(linear, precision="bf16"), run(linear)
    assert found.doc["search"] == {"precision": "bf16", "compiled": False} and "search" not in strict.doc
    assert found.doc["precision"] == "float32" == strict.arithmetic
    said = "float32 (search in bf16, what it found confirmed)"
    assert said in report(found) and said in measured_on(found) and "search in" not in report(strict)
    assert abs(found.robust_accuracy.correct - strict.robust_accuracy.correct) <= 3
    data = load_dataset("digits")
    labels = [data[int(i)][1] for i in found.witness_set.ids]
    points = torch.from_numpy(found.witness_set.pixels)
    assert len(points) > 5 and (margins(linear, points, labels, 7, CPU) > 0).all()
    assert found.clean_accuracy == strict.clean_accuracy


class Deceiving(nn.Module):
    """A network whose answer in bf16 alone is wrong at every second call."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network, self.calls = network, 0
        self.eval()

    def forward(self, x):
        logits = self.network(x)
        if torch.is_autocast_enabled("cpu"):
            self.calls += 1
            if self.calls % 2:
                return -logits
        return logits


def test_a_success_that_float32_does_not_confirm_is_none_and_the_search_goes_on(linear):
    deceived = Deceiving(linear)
    found = evaluate(deceived, "digits", "linf:1/1000", "pgd-7", n=10, precision="bf16", progress=False)
    # At so small an epsilon the network does not change its mind; bf16 says so at every second call.
    assert found.robust_accuracy.correct == found.clean_accuracy.correct > 5
    assert deceived.calls > 8 and found.doc["passes"]["backward"] == 7 * found.clean_accuracy.correct


@pytest.mark.slow
def test_workers_search_in_the_same_precision(linear):
    one, two = (run(linear, precision="bf16", protocol="pgd-5", workers=workers) for workers in (1, 2))
    assert one.deterministic_bytes() == two.deterministic_bytes()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "fp8"}, "precision is 'fp8'; expected one of float32, tf32, bf16"),
        ({"precision": "tf32"}, "only a CUDA device has"),
        ({"compiled": 1}, r"compiled is 1 \(int\); expected True or False"),
    ],
    ids=str,
)
def test_what_cannot_be_searched_in_is_refused(linear, options, words):
    with pytest.raises(RobustzooError, match=words):
        run(linear, **options)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on the CPU")
def test_a_compiled_search_is_recorded_and_agrees(linear):
    found, eager = run(linear, compiled=True), run(linear)
    assert found.doc["search"] == {"precision": "float32", "compiled": True}
    assert found.arithmetic == "float32 (search in float32 with torch.compile, what it found confirmed)"
    assert abs(found.robust_accuracy.correct - eager.robust_accuracy.correct) <= 1
