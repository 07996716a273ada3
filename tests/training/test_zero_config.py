"""`zero.config` as a table, and layouts that do not fit."""

from __future__ import annotations

import pytest

from robustzoo.errors import RobustzooError
from robustzoo.registry import all_names, recipe
from robustzoo.training import zero
from robustzoo.training.launch import Launch


@pytest.mark.parametrize("name", all_names()[::89])
@pytest.mark.parametrize(
    ("world", "micro", "stage", "accumulation"),
    [(1, None, 0, 1), (2, None, 1, 1), (2, 8, 2, None), (4, 4, 1, None)],
)
def test_every_recipe_on_every_layout(name, world, micro, stage, accumulation):
    plan = recipe(name)
    launch = Launch.fit(plan, world, micro, stage)
    config = zero.config(plan, launch)
    per_pass = micro or plan.batch_size // world
    assert config["train_batch_size"] == plan.batch_size
    assert config["train_micro_batch_size_per_gpu"] == per_pass
    assert config["gradient_accumulation_steps"] == (accumulation or plan.batch_size // (world * per_pass))
    assert config["gradient_clipping"] == plan.gradient_clipping
    assert config["zero_optimization"]["stage"] == stage
    assert config["zero_allow_untested_optimizer"] and not config["zero_force_ds_cpu_optimizer"]
    assert not config["fp16"]["enabled"] and not config["bf16"]["enabled"]
    assert zero.config(plan, launch) == config  # pure


@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_hardware_flags_become(stage, precision):
    plan = recipe("vit_l16.imagenet_linf.at_trh")
    launch = Launch.fit(plan, 8, 4, stage, precision=precision, offload="optimizer")
    made = zero.config(plan, launch)
    partition = made["zero_optimization"]
    assert not made["fp16"]["enabled"] and not made["bf16"]["enabled"]  # the weights stay float32
    assert partition["offload_optimizer"]["device"] == "cpu"
    sharding = {key: value for key, value in partition.items() if key.startswith("stage3")}
    if stage < 3:
        assert not sharding
    else:
        assert sharding["stage3_param_persistence_threshold"] == 0
        assert sharding["stage3_max_live_parameters"] == 2 * partition["reduce_bucket_size"] < 304_326_632
    assert f"ZeRO {stage}, {precision}, optimizer offloaded" in launch.describe(plan)


@pytest.mark.parametrize(
    ("name", "bucket"),
    [
        ("vit_micro2.digits_linf.at_base", 202_186 // 4),
        ("vit_ti4.cifar10jpg_linf.at_base", 5_362_762 // 4),
        ("vit_l16.imagenet_linf.at_base", 50_000_000),
    ],
)
def test_buckets_follow_the_network(name, bucket):
    plan = recipe(name)
    config = zero.config(plan, Launch.fit(plan, 1, None))
    assert config["zero_optimization"]["reduce_bucket_size"] == bucket
    assert config["zero_optimization"]["allgather_bucket_size"] == bucket


def test_buckets_are_even_as_partitions_begin_at_even_places(monkeypatch):
    """On two ranks an odd one, as convnext_atto's with five classes, ends in an assertion of DeepSpeed."""
    plan = recipe("vit_micro2.digits_linf.at_base")
    monkeypatch.setattr(zero, "parameter_count", lambda recipe: 4 * 20_001)
    assert (
        zero.config(plan, Launch.fit(plan, 2, None))["zero_optimization"]["allgather_bucket_size"] == 20_000
    )


@pytest.mark.parametrize(
    ("world", "micro", "words"),
    [
        (3, None, "the batch of 128 does not divide evenly over 3 processes"),
        (1, 48, "nearest that do: 16, 32, 64"),
        (2, 128, "--micro-batch 128 does not divide the 64 samples"),
    ],
)
def test_layouts_that_do_not_fit(world, micro, words):
    plan = recipe("vit_micro2.digits_linf.at_base", {"batch_size": 128})
    with pytest.raises(RobustzooError, match=words):
        Launch.fit(plan, world, micro)


@pytest.mark.parametrize(("name", "decay"), [("at_trh", 0.25), ("at_base", 0.5)])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_coupled_decay_of_the_optimizer(name, decay, kind):
    import torch

    plan = recipe(f"vit_micro2.digits_linf.{name}", {"optimizer": kind, "momentum": 0.5})
    made = zero.optimizer(plan, [torch.nn.Parameter(torch.ones(2))], decay)
    assert type(made) is {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[kind]  # never AdamW
    assert made.defaults["weight_decay"] == decay
    assert made.defaults["momentum" if kind == "sgd" else "betas"] == (0.5 if kind == "sgd" else (0.5, 0.999))
