"""`--set KEY=VALUE`: typed, range-checked, with an honest name and source."""

from __future__ import annotations

import pytest

from robustzoo.cards.render import recipe_table
from robustzoo.errors import RobustzooError
from robustzoo.registry import Recipe, ThreatModel, recipe
from robustzoo.registry.fields import FIELDS, read_value
from robustzoo.registry.overrides import parse_assignments

AT, TRADES = "vit_micro2.digits_linf.at_base", "vit_micro2.digits_linf.trades_base"
AT_TRH, TRADES_TRH = "vit_micro2.digits_linf.at_trh", "vit_micro2.digits_linf.trades_trh"
ALP, MART = "vit_micro2.digits_linf.alp_base", "vit_micro2.digits_linf.mart_base"
ALP_TRH, MART_TRH = "vit_micro2.digits_linf.alp_trh", "vit_micro2.digits_linf.mart_trh"
AT_ALL = "vit_micro2.digits_linf.at_s2o_awp_swa"
TI4, LARGE = "vit_ti4.cifar10jpg_linf.at_base", "vit_l16.cifar10_linf.at_base"

ACCEPTED = [
    (AT, "total_steps=500", 500),
    (AT, "batch_size=1", 1),
    (AT, "warmup_steps=0", 0),
    (AT, "base_lr=1e-2", 0.01),
    (AT, "l2_reg=0", 0.0),
    (AT, "optimizer=sgd", "sgd"),
    (AT, "augmentation=fb", "fb"),
    (AT, "momentum=0", 0.0),
    (AT, "threat_model=linf:4/255", ThreatModel.parse("linf:4/255")),
    (AT, "threat_model=L2:0.5", ThreatModel.parse("l2:1/2")),
    (AT, "mean=0.25", (0.25,)),
    ("vit_ti4.cifar10jpg_linf.at_base", "mean=0.5,0.4,0.3", (0.5, 0.4, 0.3)),
    ("vit_l16.imagenet_linf.at_base", "init=random", "random"),
    (
        AT,
        "init=timm:vit_tiny_patch16_224.augreg_in21k@unpinned",
        "timm:vit_tiny_patch16_224.augreg_in21k@unpinned",
    ),
    (AT_TRH, "trh_lambda=1e-4", 1e-4),
    (AT_TRH, "trh_lambda=0", 0.0),
    (AT_TRH, "trh_schedule=linear", "linear"),
    (TRADES, "loss_weight=1", 1.0),
    (TRADES, "loss_stop_gradient=True", True),
    (TRADES, "attack_loss=ce", "ce"),
    (ALP, "loss_weight=0.5", 0.5),
    (ALP, "loss_stop_gradient=true", True),
    (MART, "mart_bce_input=clean", "clean"),
    (ALP_TRH, "trh_stop_gradient=false", False),
    (MART_TRH, "trh_stop_gradient=false", False),
    (AT_ALL, "s2o_weight=0.5", 0.5),
    (AT_ALL, "s2o_diagonal=0.1", 0.1),
    (AT_ALL, "awp_delta=0.01", 0.01),
    (AT_ALL, "awp_warmup_steps=100", 100),
    (AT_ALL, "swa_decay=0.9", 0.9),
    (TI4, "cutmix=true", True),
    (TI4, "training_data=cifar10", "cifar10"),
    (TI4, "training_images=1000", 1000),
    (LARGE, "training_data=cifar10jpg", "cifar10jpg"),
    (LARGE, "extra_fraction=0.5", 0.5),
    (LARGE, "kernel_downsampling=block_sum", "block_sum"),
    (LARGE, "kernel_downsampling=nearest", "nearest"),
    (LARGE, "patch_stride=4", 4),
    ("hybrid_l16.cifar10_linf.at_base", "kernel_downsampling=bilinear", "bilinear"),
    (
        "hybrid_l16.imagenet_linf.at_base",
        f"init=timm:a.b_c+d-e@unpinned+{'0' * 40}",
        f"timm:a.b_c+d-e@unpinned+{'0' * 40}",
    ),
    (TRADES_TRH, "trh_stop_gradient=false", False),
]
REFUSED = [
    (ALP, "attack_loss=kl", "use attack_loss=ce"),
    (ALP, "mart_bce_input=adv", "only a mart recipe has it"),
    (MART, "cutmix=true", "needs one class an image"),
    (ALP, "loss_weight=none", "does not go with loss alp"),
    (AT, "s2o_weight=0.1", "a recipe with s2o needs s2o_weight, s2o_diagonal"),
    (AT, "awp_delta=0.1", "a recipe with awp needs"),
    (AT, "swa_decay=0.9", "a recipe with swa needs"),
    (AT_ALL, "s2o_diagonal=none", "does not go with defences"),
    (AT_ALL, "awp_warmup_steps=1200", "would never perturb"),
    (AT, "kernel_downsampling=cubic", "no effect with init random"),
    (LARGE, "patch_stride=3", "expected 4, or none, its own of 2"),
    (AT, "patch_stride=2", "none that vit_micro2 has for 8-pixel images: expected none"),
    (AT, "lr_schedule=multistep", "set lr_milestones too"),
    (AT, "lr_milestones=0.5", "set lr_schedule=multistep"),
    (TI4, "training_data=cifar100", "expected cifar10jpg or cifar10"),
    (TI4, "training_data=mnist", "expected cifar10jpg or cifar10"),
    (AT, "training_data=cifar10", "expected digits"),
    (AT, "defences=trh,swa", "defences: trh,swa differs from none, which the model's name fixes"),
    (AT, "mean=[0.3]", "separated by commas"),
    (AT, "threat_model=l1:2", "cannot be trained against"),
    (AT, "threat_model=l2:8.1", "holds every image"),
    (TI4, "training_images=50000", "set training_images=none"),
    (TI4, "extra_data=ddpm", "set both"),
    (LARGE, "extra_data=ddpm:1000000", "the published number of images: set extra_data=ddpm"),
    (LARGE, "extra_data=ddpm:0", "expected none, ddpm, or ddpm:N with N generated images"),
    (LARGE, "extra_data=edm", "expected none, ddpm, or ddpm:N"),
    (LARGE, "batch_size=1", "without original images"),
    (AT, "extra_data=ddpm", "has images of 3x32x32"),
    (TI4, "augmentation=crop", "brightness 0.1 has no effect with augmentation crop"),
    (AT, "data_range=[0,255]", "data_range: .* is not allowed: expected one of"),
    ("hybrid_l16.imagenet_linf.at_base", "init=timm:a+b@unpinned", "init: .* is not allowed"),
    (LARGE, "init=timm:a@unpinned+unpinned", "init: .* is not allowed"),
    (AT, "total_steps=0", "total_steps: '0' is not allowed: expected a whole number at least 1"),
    (AT, "total_steps=1.5", "a whole number"),
    (AT, "total_steps=many", "a whole number"),
    (AT, "total_steps=none", "a whole number"),
    (AT, "total_steps=99", "warmup_steps 100 is more than total_steps 99"),
    (AT, "total_steps=" + "9" * 5000, "a whole number"),
    (AT, "base_lr=nan", "finite"),
    (AT, "brightness=0.1", "no effect with augmentation none"),
    (AT, "loss_stop_gradient=maybe", "true or false"),
    (AT, "loss_stop_gradient=true", "no effect with loss at"),
    (AT, "loss_weight=6", "does not go with loss at"),
    (AT, "trh_lambda=1", "does not go with defences"),
    (AT, "trh_stop_gradient=false", "no effect here"),
    (AT_TRH, "trh_stop_gradient=false", "no effect here"),
    (AT_TRH, "l2_reg=1e-4", "gamma replaces it"),
    (AT_TRH, "trh_lambda=none", "trh_lambda None does not go with"),
    (TRADES, "loss_weight=none", "does not go with loss trades"),
    (AT, "threat_model=linf:-8/255", "threat_model: epsilon '-8/255'"),
    (AT, "threat_model=linf:8", "did you mean linf:8/255"),
    (AT, "threat_model=8/255", "NORM:EPSILON"),
    (AT, "epsilon=4/255", "threat_model=linf:4/255"),
    (AT, "mean=0.1,0.2", "one for each of the 1 channels"),
    (AT, "init=/tmp/x.safetensors", "--init PATH"),
    (AT, "init=timm:vit_tiny_patch16_224@main", "40 hex"),
    (AT, "loss=trades", "name fixes"),
    (AT, "batchsize=3", "unknown key 'batchsize' to set.*Did you mean batch_size"),
    (AT, "trh_lamda=3", "Did you mean trh_lambda"),
    (AT, "name=x", "unknown key 'name'"),
    (AT, "sources=x", "unknown key 'sources'"),
    (AT, "epochs=0", "epochs: '0' is not allowed"),
    (AT, "epochs=inf", "epochs: 'inf' is not allowed"),
    (AT, "epochs=1e308", "epochs: '1e308' is not allowed"),
]


@pytest.mark.parametrize(("name", "assignment", "value"), ACCEPTED)
def test_accepted(name, assignment, value):
    changes = parse_assignments([assignment])
    (field,) = changes
    made, original = recipe(name, changes), recipe(name)
    assert getattr(made, field) == value
    assert type(getattr(made, field)) is type(value)
    assert made.name == f"{name}+{made.digest[:8]}"
    assert made.base_name == name
    assert made.digest != original.digest
    assert made.sources[field].startswith("set by hand (was ")
    assert original.sources[field] in made.sources[field]
    untouched = set(FIELDS) - {field}
    assert all(made.sources[other] == original.sources[other] for other in untouched)


@pytest.mark.parametrize(("name", "assignment", "problem"), REFUSED)
def test_refused(name, assignment, problem):
    with pytest.raises(RobustzooError, match=problem):
        recipe(name, parse_assignments([assignment]))


NUMBERS = ("int", "float", "floats")
BOUNDS = {"at least": ("low", -1), "at most": ("high", 1), "above": ("above", 0), "below": ("below", 0)}
OUTSIDE = [
    (key, word, getattr(field, bound) + beyond)
    for key, field in FIELDS.items()
    for word, (bound, beyond) in BOUNDS.items()
    if field.kind in NUMBERS and getattr(field, bound) is not None
]
NO_CHOICE = [(key, "one of", "other") for key, field in FIELDS.items() if field.choices]


@pytest.mark.parametrize(("key", "words", "value"), OUTSIDE + NO_CHOICE)
def test_every_field_keeps_to_its_range(key, words, value):
    with pytest.raises(RobustzooError, match=f"{key}: '{value}' is not allowed: expected .*{words}"):
        read_value(key, str(value))


@pytest.mark.parametrize(
    ("milestones", "problem"),
    [("0.75,0.5", "do not rise"), ("0.5,0.5", "do not rise"), ("0.05,0.5", "begin within the warm-up")],
)
def test_milestones_that_make_no_schedule(milestones, problem):
    with pytest.raises(RobustzooError, match=problem):
        recipe(AT, {"lr_schedule": "multistep", "lr_milestones": milestones})


def test_what_the_paper_searched_can_be_set():
    """decay_type {multistep, cosine} and patch_stride {2, 4} of its tables 3 and 4."""
    searched = {"lr_schedule": "multistep", "lr_milestones": "0.5,0.75", "patch_stride": "4"}
    made = recipe(LARGE, searched)
    assert (made.lr_schedule, made.lr_milestones, made.patch_stride) == ("multistep", (0.5, 0.75), 4)
    assert Recipe.from_json(made.to_json()) == made != recipe(LARGE)
    table = recipe_table(made)
    assert "| `lr_schedule` | multistep | divided by 10 at lr_milestones after warm-up |" in table
    assert "| `lr_schedule` | cosine | decay to 0 after warm-up |" in recipe_table(recipe(LARGE))
    assert "lr_milestones" not in recipe(LARGE).to_json() and "patch_stride" not in recipe_table(
        recipe(LARGE)
    )


@pytest.mark.parametrize("name", [AT, TRADES_TRH, MART_TRH, AT_ALL, LARGE])
def test_setting_a_value_to_itself_changes_nothing(name):
    plain = recipe(name)
    for field in FIELDS:
        made = recipe(name, {field: getattr(plain, field)})
        assert (made, made.sources, made.name) == (plain, plain.sources, name), field


@pytest.mark.parametrize(
    ("assignments", "problem"),
    [
        (["total_steps"], "is not KEY=VALUE"),
        (["=3"], "is not KEY=VALUE"),
        (["total_steps="], "is not KEY=VALUE"),
        (["base_lr=1", "base_lr=2"], "given twice"),
        (["total_step=1"], "Did you mean total_steps"),
    ],
)
def test_bad_assignments(assignments, problem):
    with pytest.raises(RobustzooError, match=problem):
        parse_assignments(assignments)


def test_assignments_keep_later_equals_signs_and_drop_blanks():
    assert parse_assignments([" base_lr = 1e-3 ", "init=a=b"]) == {"base_lr": "1e-3", "init": "a=b"}
    assert parse_assignments([]) == {}


def test_epochs_become_steps_of_the_chosen_batch():
    made = recipe(AT, {"epochs": "2", "batch_size": "64", "warmup_steps": 10, "attack_warmup_steps": 0})
    assert made.total_steps == 41  # ceil(2 * 1297 / 64)
    assert recipe(AT, {"epochs": 0.5, "warmup_steps": 0, "attack_warmup_steps": 0}).total_steps == 11
    with pytest.raises(RobustzooError, match="both set the training length"):
        recipe(AT, {"epochs": 2, "total_steps": 100})


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [("[-1,1]", 0.5, 0.5), ("[-1, 1]", 0.5, 0.5), ("[0,1]", 0.0, 1.0), ("centered", 0.47, 0.25)],
)
def test_a_data_range_is_a_mean_and_a_deviation(text, mean, std):
    made = recipe(TI4, parse_assignments([f"data_range={text}"]))
    assert (made.mean, made.std) == ((mean,), (std,))
    assert (made.name == TI4) == (text == "centered")
    assert made.threat_model == recipe(TI4).threat_model, "epsilon is in pixels, whatever the range"
    for other in ("mean", "std"):
        with pytest.raises(RobustzooError, match="data_range sets mean and std"):
            recipe(TI4, {"data_range": text, other: (0.5,)})
    with pytest.raises(RobustzooError, match="data_range: 3 is not allowed"):
        recipe(TI4, {"data_range": 3})


def test_epochs_are_passes_over_the_original_images():
    made = recipe(LARGE, {"epochs": 2, "warmup_steps": 0})
    assert made.total_steps == 435  # 230 originals in a batch of 768: ceil(2 * 50,000 / 230)
    assert made.cost()["epochs"] == pytest.approx(2, abs=0.01)
    none = {"extra_data": "none", "extra_fraction": 0, "warmup_steps": 0}
    assert recipe(LARGE, {"epochs": 20} | none).total_steps == 1303  # ceil(20 * 50,000 / 768)
    few = {"epochs": 300, "training_images": 1000}
    assert recipe(LARGE, few | none).total_steps == 391  # ceil(300 * 1,000 / 768)


def test_equal_changes_have_equal_names_whatever_their_spelling_and_order():
    first = recipe(AT, {"base_lr": "1e-2", "threat_model": "linf:0.2"})
    second = recipe(AT, {"threat_model": ThreatModel.parse("linf:1/5"), "base_lr": 0.01})
    assert first == second
    assert first.name == second.name
    assert recipe(AT, {"l2_reg": "-0.0"}).digest == recipe(AT, {"l2_reg": 0}).digest


@pytest.mark.parametrize("value", [None, [], {}, object(), b"3", 2.5])
def test_values_of_a_wrong_type(value):
    with pytest.raises(RobustzooError, match=r"total_steps: .* is not allowed"):
        recipe(AT, {"total_steps": value})


@pytest.mark.parametrize("content", ['"batch_size": 1' + 5000 * "0", '"sources": {"base_lr": "\\ud800"}'])
def test_what_json_allows_and_python_does_not(tmp_path, content):
    path = tmp_path / "odd.json"
    path.write_text('{"base_name": "vit_micro2.digits_linf.at_trh", ' + content + "}")
    with pytest.raises(RobustzooError, match=r"recipe file|sources: base_lr"):
        recipe(path)
