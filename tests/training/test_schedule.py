"""The learning rate against its closed form, and the cost line against the pass table."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustzoo.registry import all_names, recipe
from robustzoo.training.step import expected_cost, learning_rate


def small(total_steps: int, warmup_steps: int, shape: str = "cosine"):
    changes = {
        "lr_schedule": shape,
        "total_steps": total_steps,
        "warmup_steps": warmup_steps,
        "attack_warmup_steps": 0,
        "base_lr": 2.0,
    }
    return recipe("vit_micro2.digits_linf.at_base", changes)


def test_values_by_hand():
    rates = [learning_rate(small(total_steps=8, warmup_steps=4), step) for step in range(8)]
    expected = [0.5, 1.0, 1.5, 2.0, 2.0, 1 + math.cos(math.pi / 4), 1.0, 1 + math.cos(3 * math.pi / 4)]
    assert rates == pytest.approx(expected, abs=1e-12)


def test_one_cycle_by_hand():
    rates = [learning_rate(small(8, 4, "linear"), step) for step in range(8)]
    assert rates == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0, 1.5, 1.0, 0.5], abs=1e-12)


@given(st.integers(1, 300), st.data())
def test_rises_then_falls_and_is_never_zero(total, data):
    plan = small(total, data.draw(st.integers(0, total)), data.draw(st.sampled_from(["cosine", "linear"])))
    rates = [learning_rate(plan, step) for step in range(total)]
    top = max(plan.warmup_steps, 1)
    assert all(0 < rate <= plan.base_lr for rate in rates)
    assert rates[:top] == sorted(rates[:top]) and rates[top - 1 :] == sorted(rates[top - 1 :], reverse=True)


def test_multistep_divides_by_ten_at_each_share_of_the_steps():
    changes = {"lr_schedule": "multistep", "lr_milestones": "0.1,0.5", "warmup_steps": 2, "base_lr": 2.0}
    plan = recipe("vit_micro2.digits_linf.at_base", changes | {"total_steps": 30, "attack_warmup_steps": 0})
    rates = [learning_rate(plan, step) for step in range(30)]
    assert rates == pytest.approx([1.0] + 2 * [2.0] + 12 * [0.2] + 15 * [0.02], rel=1e-12)


@pytest.mark.parametrize("step", [-1, 8])
def test_outside_the_schedule(step):
    with pytest.raises(ValueError, match="outside the schedule of 8 steps"):
        learning_rate(small(8, 2), step)


@pytest.mark.parametrize("name", [name for name in all_names() if name.startswith("vit_micro2.")][::5])
def test_cost_of_every_method(name):
    """The table of passes: T and 2 T of training, as much again for AWP, T of S2O's clean batch with AT,
    which AWP does not climb."""
    plan = recipe(name)
    n, of_loss = plan.attack_steps, 1 if plan.loss == "at" else 2
    two_sided = plan.loss != "at" or "s2o" in plan.defences
    trainings = (2 if two_sided else 1) + (of_loss if "awp" in plan.defences else 0)
    clean = plan.loss == "trades"
    trained = "T" if trainings == 1 else f"{trainings} T"
    passes = f"{'F + ' * clean}{n} (F + B) + {trained}"
    forwards = clean + 2 * n + 3 * trainings
    text = expected_cost(plan, 10)
    assert f"each {passes} = {forwards} F" in text
    assert f"{10 * plan.batch_size * forwards:,} forward passes" in text
