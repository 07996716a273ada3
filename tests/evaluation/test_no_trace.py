"""Attacks leave no trace on a model that keeps tables from its first forward: its owner can train."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from robustzoo.attacks.frozen import frozen
from robustzoo.cards import Evidence
from robustzoo.diagnostics.crosscheck import crosscheck
from robustzoo.diagnostics.engines import Engine
from robustzoo.diagnostics.masking_probe import probe_masking
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.reports.comparison import compare
from robustzoo.verification.verify import verify

X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Keeping(nn.Module):
    """A linear classifier that makes its scale, 1 for each pixel, on its first call."""

    def __init__(self, how: str) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weight = nn.Parameter(torch.randn(64, 3, generator=generator))
        self.how, self.scale, self.tables, self.ready = how, None, {}, False
        self.register_buffer("late", None, persistent=False)

    def forward(self, x):
        return (x.flatten(1) * self._table(len(x), x)) @ self.weight

    def _table(self, size, x):
        if self.how == "by size":
            return self.tables.setdefault(size, x.new_ones(size, 64))
        if self.how == "from weights":
            if not self.ready:
                self.scale, self.ready = self.weight.mean().exp() * x.new_ones(64), True
            return self.scale
        if self.how == "attribute":
            if self.scale is None:
                self.scale = x.new_ones(64)
            return self.scale
        if self.how == "buffer":
            if self.late is None:
                self.late = x.new_ones(64)
            return self.late
        if not hasattr(self, "registered"):
            self.register_buffer("registered", x.new_ones(64), persistent=False)
        return self.registered


KINDS = ["attribute", "by size", "buffer", "registered buffer", "from weights"]


def evaluated(model, **options):
    return evaluate(model, (X, Y), "linf:0.1", "apgd-ce+t", progress=False, **options)


def compared(model):
    compare([evaluated(model)], [evaluated(model)])


def crosschecked(model, monkeypatch):
    class Standing(Engine):
        title = "none"

        def attack(self, member):
            return lambda x, y: x

    monkeypatch.setattr(
        "robustzoo.diagnostics.crosscheck.open_engine", lambda *given: Standing(torch, *given[1:])
    )
    monkeypatch.setattr("robustzoo.diagnostics.engines._version", lambda package: "0")
    crosscheck(model, (X, Y), "linf:0.1", attacks=["apgd-ce"], progress=False)


USES = {
    "evaluate": lambda model, _: evaluated(model),
    "square": lambda model, _: evaluate(model, (X, Y), "linf:0.1", "square", progress=False),
    "compare": lambda model, _: compared(model),
    "masking": lambda model, _: probe_masking(model, (X, Y), "linf:0.1", progress=False),
    "crosscheck": crosschecked,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("how", KINDS)
def test_a_model_that_keeps_a_table_can_be_trained_afterwards(how, use, monkeypatch):
    model = Keeping(how).eval()
    before = {name: value for name, value in vars(model).items() if not name.startswith("_")}
    USES[use](model, monkeypatch)
    assert {name: value for name, value in vars(model).items() if not name.startswith("_")} == before
    assert dict(model.named_buffers()) == {} and model.late is None and not model.tables
    model.train()
    nn.functional.cross_entropy(model(X), Y).backward()
    assert model.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("how", KINDS)
def test_workers_leave_no_trace_and_change_no_verdict(how):
    model = Keeping(how).eval()
    expected = evaluated(model, micro_batch_size=2)
    if how == "by size":  # one kind suffices for what starts a process
        assert evaluated(model, micro_batch_size=2, workers=2).key() == expected.key()
    assert not model.tables and model.scale is None
    nn.functional.cross_entropy(model(X), Y).backward()


def test_what_was_kept_before_is_kept():
    model = Keeping("by size").eval()
    table, model.calls = model._table(6, X), 0
    model.register_forward_hook(lambda module, inputs, output: setattr(module, "calls", module.calls + 1))
    evaluated(model)
    assert list(model.tables) == [6] and model.tables[6] is table
    counting = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).eval()
    counting.calls = 0
    counting.register_forward_hook(lambda module, inputs, output: setattr(module, "calls", module.calls + 1))
    evaluated(counting)
    assert counting.calls > 4, "a count of calls is its owner's own, where no tensor was kept beside it"


@pytest.mark.parametrize("place", ["attribute", "dictionary"])
def test_a_plain_tensor_that_a_forward_writes_into_gets_its_values_back(place):
    class Counting(nn.Sequential):
        def forward(self, x):
            (self.seen if place == "attribute" else self.tables["seen"]).add_(len(x))
            return super().forward(x)

    model = Counting(nn.Flatten(), nn.Linear(64, 3)).eval()
    model.seen = torch.zeros(2)
    model.tables = {"seen": torch.zeros(2), "wide": torch.zeros(1).expand(4)}
    held = model.seen, model.tables["seen"]
    evaluated(model)
    assert (model.seen, model.tables["seen"]) == held and not any(t.any() for t in held)


def test_a_mode_that_an_attack_changes_is_put_back():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(64, 3)).train()
    with frozen(model):
        assert not model[1].training
    assert model[1].training


@pytest.mark.parametrize("mode", ["replay", "spot", "full"])
def test_verification_leaves_no_trace(folder, mode, monkeypatch):
    """The folder's own model, with a table in its forward."""
    from robustzoo.models.folder import read_folder

    kept = []

    def reading(*given):
        model = read_folder(*given)
        model.tables, normalise = {}, model.normalise
        model.normalise = lambda x: normalise(
            x * model.tables.setdefault(len(x), torch.ones(len(x), 1, 1, 1))
        )
        kept.append(model)
        return model

    monkeypatch.setattr("robustzoo.verification.verify.read_folder", reading)
    verify(folder, mode=mode, progress=False)
    (model,) = kept
    assert not model.tables
    model(X).sum().backward()


def test_a_micro_batch_of_a_million_million_is_bounded_by_the_images(folder):
    (path,) = folder.glob("evidence/*.json")
    doc = json.loads(path.read_text(encoding="utf-8"))
    doc["micro_batch_size"] = doc["run"]["fingerprint"]["micro_batch_size"] = 10**12
    path.write_text(json.dumps(Evidence(doc).doc), encoding="utf-8")
    card = (folder / "README.md").read_text(encoding="utf-8")
    (folder / "README.md").write_text(
        card.replace("micro-batch 64", f"micro-batch {10**12}"), encoding="utf-8"
    )
    report = verify(folder, progress=False)
    assert report.outcome == "consistent"
    assert any(f"states a micro-batch of {10**12}; 100 is used" in note for note in report.claims[0].notes)
