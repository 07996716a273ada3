"""Precision, recomputed activations and compiled graphs: what runs in what, and how often it is compiled."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import torch
from timm.models import vision_transformer
from torch._dynamo.utils import counters

from robustzoo.errors import RobustzooError
from robustzoo.objectives.objective import Objective
from robustzoo.objectives.weight_perturbation import moved
from robustzoo.registry import recipe
from robustzoo.training import launch, passes, zero
from tests.training.plain_pytorch import largest_difference
from tests.training.small import AT_TRH, NO_ATTACK, SGD, TRADES_TRH, small

AWP = "vit_micro2.digits_linf.at_awp"


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def seen(monkeypatch):
    """What the passes of a training give and take: dtypes of features, logits, attacks, losses, weights."""
    found: dict[str, set] = {}

    def watch(owner, name, of):
        original = getattr(owner, name)

        def call(*args, **kwargs):
            out = original(*args, **kwargs)
            for what, tensor in of(args, out).items():
                found.setdefault(what, set()).add(tensor.dtype)
            return out

        monkeypatch.setattr(owner, name, call)

    watch(passes.Passes, "train", lambda args, out: {"features": out[0], "logits": out[1]})
    watch(Objective, "attacked", lambda args, out: {"x_adv": out[1]})
    watch(Objective, "terms", lambda args, out: out)
    watch(zero, "own_weights", lambda args, out: out)
    block = torch.nn.Linear.forward

    def linear(self, x):
        out = block(self, x)
        found.setdefault("products", set()).add(out.dtype)
        return out

    monkeypatch.setattr(torch.nn.Linear, "forward", linear)
    return found


@pytest.mark.parametrize(
    ("precision", "products"), [("bf16", torch.bfloat16), ("fp16", torch.float16), ("float32", torch.float32)]
)
def test_only_products_are_in_half_precision(train, tmp_path, weights, seen, precision, products):
    float32, run = tmp_path / "float32", tmp_path / precision
    arguments = [TRADES_TRH, *small(), *SGD]
    assert train([*arguments, "--precision", precision, "--out", str(run)]) == 0
    assert seen.pop("products") == {products, torch.float32}  # the head is in float32
    assert set.union(*seen.values()) == {torch.float32} and {"x_adv", "trace", "features"} < seen.keys()
    if precision != "float32":
        assert train([*arguments, "--out", str(float32)]) == 0
        assert 0 < largest_difference(weights(run / "model"), weights(float32 / "model")) < 1e-3


def test_awp_keeps_its_perturbation_in_bf16(train, tmp_path, monkeypatch):
    """|v| = delta |w| in what the weights really are, at a delta of which bfloat16 would lose most."""
    distances = []

    @contextmanager
    def measured(parameters, moves):
        before = [parameter.detach().double() for parameter in parameters]
        with moved(parameters, moves):
            pairs = zip(parameters, before, strict=True)
            distances.extend(((w.detach() - b).norm() / b.norm()).item() for w, b in pairs if b.norm() > 0)
            yield

    monkeypatch.setattr("robustzoo.training.passes.moved", measured)
    flags = ["--set", "awp_delta=0.0001", "--precision", "bf16", "--max-steps", "1"]
    assert train([AWP, *small(), *SGD[:4], *flags, "--out", str(tmp_path / "run")]) == 0
    assert distances == pytest.approx([1e-4] * len(distances), rel=0.01) and distances


def test_a_step_beyond_the_range_of_fp16_is_skipped(train, tmp_path, monkeypatch):
    monkeypatch.setitem(zero._LOSS_SCALE, "init_scale", 2.0**60)
    arguments = [AT_TRH, *small(), *SGD, "--precision", "fp16", "--max-steps", "2"]
    assert train([*arguments, "--out", str(tmp_path / "run")]) == 0
    first, second = records(tmp_path / "run")
    assert (first["loss_scale"], second["loss_scale"]) == (2.0**59, 2.0**58)
    assert "gradient_norm" not in first and first["l2"] == second["l2"]  # the weights stayed


def test_the_loss_scale_is_resumed(train, tmp_path, monkeypatch, weights):
    monkeypatch.setitem(zero._LOSS_SCALE, "init_scale", 2.0**20)
    arguments = [AT_TRH, *small(), *SGD, "--precision", "fp16", "--checkpoint-every", "1"]
    for name, flags in {"whole": [], "cut": ["--max-steps", "2"]}.items():
        assert train([*arguments, *flags, "--out", str(tmp_path / name)]) == 0
    assert train([*arguments, "--out", str(tmp_path / "cut"), "--resume"]) == 0
    whole, cut = (records(tmp_path / name) for name in ("whole", "cut"))
    assert [r["loss_scale"] for r in whole] == [r["loss_scale"] for r in cut]
    assert largest_difference(weights(tmp_path / "whole/model"), weights(tmp_path / "cut/model")) == 0


def test_activations_are_recomputed_in_the_training_pass_alone(train, tmp_path, monkeypatch, weights):
    calls = {"recomputed": 0, "in an attack": 0}
    checkpoint, attack = vision_transformer.checkpoint_seq, Objective.attacked

    def counted(*args, **kwargs):
        calls["recomputed"] += 1
        return checkpoint(*args, **kwargs)

    def attacked(*args, **kwargs):
        before = calls["recomputed"]
        pair = attack(*args, **kwargs)
        calls["in an attack"] += calls["recomputed"] - before
        return pair

    monkeypatch.setattr(vision_transformer, "checkpoint_seq", counted)
    monkeypatch.setattr(Objective, "attacked", attacked)
    arguments = [AT_TRH, *small(), *SGD, "--micro-batch", "4", "--max-steps", "2"]
    for name, flags in {"kept": [], "recomputed": ["--activation-checkpointing"]}.items():
        assert train([*arguments, *flags, "--out", str(tmp_path / name)]) == 0
    assert calls == {"recomputed": 2 * 2, "in an attack": 0}  # one a micro-batch
    assert largest_difference(weights(tmp_path / "kept/model"), weights(tmp_path / "recomputed/model")) == 0


@pytest.mark.parametrize(
    ("name", "graphs"), [(AT_TRH, 2), pytest.param(TRADES_TRH, 3, marks=pytest.mark.slow)]
)
def test_compiled_once(train, tmp_path, monkeypatch, weights, name, graphs):
    """An attack graph, a training graph, TRADES' clean target: as many after three steps and validations."""
    monkeypatch.setattr(passes, "COMPILER", "aot_eager")  # what is compiled, without the code generator
    torch._dynamo.reset()
    counters.clear()
    arguments = [name, *small(), *SGD, *NO_ATTACK, "--max-steps", "3", "--validate-every", "1"]
    assert train([*arguments, "--compile", "--out", str(tmp_path / "compiled")]) == 0
    assert counters["stats"]["unique_graphs"] == graphs
    assert not counters["graph_break"]
    assert train([*arguments, "--out", str(tmp_path / "eager")]) == 0
    assert largest_difference(weights(tmp_path / "compiled/model"), weights(tmp_path / "eager/model")) < 1e-5


@pytest.mark.parametrize(
    ("name", "stage", "settings", "words"),
    [
        (AWP, 3, {}, "has AWP, which scales every weight by its own norm.*use --zero 2"),
        (AT_TRH, 3, {"compile": True}, "--compile traces whole weights.*use --zero 2"),
        (AT_TRH, 0, {"offload": "optimizer"}, "ZeRO 0 has none: use --zero 1"),
        (AT_TRH, 0, {"precision": "fp16"}, "use --zero 1, or --precision bf16"),
    ],
)
def test_what_does_not_go_together_is_refused(name, stage, settings, words):
    with pytest.raises(RobustzooError, match=words):
        launch.Launch.fit(recipe(name), 1, None, stage, **settings)
