"""Every loss and defence through train.py: end to end on two ranks, resumed exactly, averaged, perturbed."""

from __future__ import annotations

import json
import math

import pytest
import torch

from robustzoo.models import read_folder
from robustzoo.registry import all_names
from robustzoo.registry.names import parse
from tests.training.ranks import run_on_ranks
from tests.training.small import SGD, small

DIGITS = "vit_micro2.digits_linf"
ALONE = [
    name for name in all_names() if name.startswith(DIGITS) and len(parse(name).modifiers) <= 1
]  # every loss, bare and with every defence that goes with it
TOGETHER = [f"{DIGITS}.{method}" for method in ("trades_trh_awp_swa", "mart_trh_awp", "alp_s2o_awp_swa")]


def test_the_methods_are_those_of_the_paper():
    methods = {name.rsplit(".", 1)[1] for name in ALONE}
    defences = ("base", "trh", "s2o", "awp", "swa")
    expected = {f"{loss}_{defence}" for loss in ("at", "trades", "alp", "mart") for defence in defences}
    assert methods == expected


@pytest.mark.slow
def test_fifty_steps_of_every_method_on_two_ranks(tmp_path):
    """The recipes themselves, cut to a batch of 16: ZeRO 1, finite, weights of their own, a model that
    loads."""
    flags = [
        "--batch-size",
        "16",
        "--max-steps",
        "50",
        "--zero",
        "1",
        "--log-every",
        "1",
        "--checkpoint-every",
        "1000",
    ]
    lists = [[name, *flags, "--out", str(tmp_path / name)] for name in ALONE + TOGETHER]
    run_on_ranks(2, lists, tmp_path)
    digests = set()
    for name in ALONE + TOGETHER:
        lines = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        assert len(lines) == 50
        numbers = [value for line in lines for value in line.values() if isinstance(value, float)]
        assert all(map(math.isfinite, numbers)), name
        model = read_folder(tmp_path / name / "model")
        assert model.name.startswith(f"{name}+")
        digests.add(tuple(model.head.weight.flatten()[:8].tolist()))
    assert len(digests) == len(ALONE + TOGETHER), "every method trains other weights"


@pytest.mark.parametrize("method", ["at_swa", "trades_trh_awp_swa", "at_s2o_awp"])
def test_resumed_is_uninterrupted(train, tmp_path, weights, method):
    arguments = [f"{DIGITS}.{method}", *small(), "--checkpoint-every", "1"]
    assert train([*arguments, "--out", str(tmp_path / "whole")]) == 0
    assert train([*arguments, "--out", str(tmp_path / "cut"), "--max-steps", "2"]) == 0
    assert train([*arguments, "--out", str(tmp_path / "cut"), "--resume"]) == 0
    whole, cut = weights(tmp_path / "whole/model"), weights(tmp_path / "cut/model")
    assert all(torch.equal(whole[name], cut[name]) for name in whole)


def test_the_exported_weights_are_the_average_of_the_steps(train, tmp_path, weights):
    """theta_avg = d theta_avg + (1 - d) theta, from the initial weights on; the theta are those of base."""
    decay = 0.5
    runs = {}
    for steps in (1, 2, 3):
        out = tmp_path / f"base{steps}"
        flags = [*small(), *_sgd_without_trh(), "--max-steps", str(steps), "--out", str(out)]
        assert train([f"{DIGITS}.at_base", *flags]) == 0
        runs[steps] = weights(out / "model")
    flags = [*small(), *_sgd_without_trh(), "--set", f"swa_decay={decay}", "--max-steps", "3"]
    assert train([f"{DIGITS}.at_swa", *flags, "--out", str(tmp_path / "swa")]) == 0
    averaged = weights(tmp_path / "swa/model")
    from robustzoo.models.pixel_model import pixel_model
    from robustzoo.registry import recipe

    torch.manual_seed(0)
    start = pixel_model(recipe(f"{DIGITS}.at_base")).network.state_dict()
    for name in averaged:
        expected = start[name]
        for steps in (1, 2, 3):
            expected = decay * expected + (1 - decay) * runs[steps][name]
        torch.testing.assert_close(averaged[name], expected, rtol=1e-5, atol=1e-7)


def test_awp_steps_to_other_weights_and_leaves_no_trace_before_its_warm_up(train, tmp_path, weights):
    def run(name, *flags):
        out = tmp_path / f"{name}{len(flags)}"
        arguments = [f"{DIGITS}.{name}", *small(), *_sgd_without_trh(), *flags]
        assert train([*arguments, "--max-steps", "2", "--out", str(out)]) == 0
        return weights(out / "model")

    base, awp = run("at_base"), run("at_awp", "--set", "awp_delta=0.01")
    late = run("at_awp", "--set", "awp_delta=0.01", "--set", "awp_warmup_steps=2")
    assert all(torch.equal(base[name], late[name]) for name in base)
    assert any(not torch.equal(base[name], awp[name]) for name in base)


def test_accumulation_does_not_change_awp(train, tmp_path, weights):
    runs = []
    for flags in ([], ["--micro-batch", "4"]):
        out = tmp_path / f"run{len(flags)}"
        arguments = [f"{DIGITS}.trades_awp", *small(), *_sgd_without_trh(), "--set", "awp_delta=0.01", *flags]
        assert train([*arguments, "--max-steps", "2", "--out", str(out)]) == 0
        runs.append(weights(out / "model"))
    for name in runs[0]:
        torch.testing.assert_close(runs[0][name], runs[1][name], rtol=0, atol=1e-5)


def test_other_data_and_generated_images_are_asked_for_in_words(train, tmp_path, capsys, shared):
    name = "vit_ti4.cifar10_linf.at_base"
    data = f"cifar10jpg:{shared / 'data/cifar10jpg'}"
    tiny = ["--batch-size", "2", "--max-steps", "1", "--set", "attack_steps=1", "--init", "random"]
    assert train([name, "--data", data, "--extra-data", "none", *tiny, "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().err
    assert "training_data cifar10jpg (was cifar10)" in said
    exported = read_folder(tmp_path / "run/model")
    assert exported.recipe.training_data == "cifar10jpg" and exported.name != name


def _sgd_without_trh() -> list[str]:
    return SGD[:4]


def test_a_recipe_of_a_part_of_the_data_wants_that_part(train, tmp_path, capsys):
    arguments = [f"{DIGITS}.at_base", *small(), "--set", "training_images=50", "--out", str(tmp_path / "run")]
    assert train(arguments) == 2
    assert "is a training on 50 of the images of digits, but 1,147 are at hand" in capsys.readouterr().err
