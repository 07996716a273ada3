"""Recipes: every name has one, every value a source, every science field its say in the digest."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustzoo.cards.render import recipe_table
from robustzoo.errors import RobustzooError
from robustzoo.registry import IncompatibleName, Recipe, ThreatModel, UnknownName, all_names, recipe
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS
from robustzoo.registry.composition import neutral
from robustzoo.registry.describe import describe
from robustzoo.registry.fields import FIELDS, read_value, write_value
from robustzoo.registry.recipes import partial, science_digest

DIGITS = "vit_micro2.digits_linf."
BUDGET = ("total_steps", "batch_size", "warmup_steps", "optimizer", "base_lr", "momentum", "attack_steps")


# Of the 31 x 48 combinations: every method, and every network with every dataset, is among each.
SOME, FEW = all_names()[::5], all_names()[::23]


def test_every_name_has_a_whole_recipe_and_a_digest_of_its_own():
    made = [check_whole(name) for name in all_names()]
    assert len({recipe.digest for recipe in made}) == len(made) > 0


def check_whole(name: str) -> Recipe:
    made = recipe(name)
    assert (made.name, made.base_name) == (name, name)
    assert set(made.sources) == set(FIELDS)
    assert all(made.sources[field].strip() for field in FIELDS)
    dataset, architecture = DATASETS[made.dataset], ARCHITECTURES[made.architecture]
    assert (made.image_size, made.channels, made.num_classes) == (
        dataset.image_size,
        dataset.channels,
        dataset.num_classes,
    )
    assert made.image_size in architecture.networks
    assert (made.init == "random") == (architecture.init is None)
    assert (made.loss_weight is not None) == (made.loss != "at")
    trh = "trh" in made.defences
    assert trh == ("_trh" in name)
    assert all((value is not None) == trh for value in (made.trh_lambda, made.trh_schedule, made.trh_gamma))
    assert not (trh and made.l2_reg), "gamma replaces l2_reg; they never add up"
    return made


def test_json_round_trip_and_digest():
    for name in SOME:
        made = recipe(name)
        again = Recipe.from_json(json.loads(json.dumps(made.to_json())))
        assert again == made
        assert again.sources == made.sources
        assert again.digest == made.digest == recipe(name).digest
        assert again.to_json() == made.to_json()
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
        assert hash(again) == hash(made)


def test_a_digest_is_stable_across_versions_and_processes():
    """Published folders carry digests: a change of this value needs a line in the change log."""
    digest = recipe("vit_l16.imagenet_linf.at_trh").digest
    assert digest == "2d8fd24ba084156bcc8a12e7209ad16a3baa9fe2a8e4a36f0ef8960a7df95aec"


def _another(field: str, value: object) -> object:
    """A different valid value of a field, by kind."""
    kind = FIELDS[field].kind
    if FIELDS[field].choices:
        return next(choice for choice in (*FIELDS[field].choices, "other") if choice != value)
    if kind == "threat model":
        return ThreatModel.parse("linf:2/255")
    if kind == "floats":
        return tuple(item + 0.125 for item in value or (0.25,))
    others = {"text": "other", "texts": ("other",), "arguments": {"other": 1}}
    return (others | {"int": 77, "float": 0.123, "bool": not value})[kind]


@pytest.mark.parametrize("name", [DIGITS + "at_base", DIGITS + "trades_trh"])
def test_the_digest_hears_every_science_field(name):
    science, digest = recipe(name).science, recipe(name).digest
    assert science_digest(science) == science_digest(dict(reversed(science.items()))) == digest
    for field in FIELDS:
        changed = science | {field: _another(field, science[field])}
        assert science_digest(changed) != digest, field


def test_the_digest_does_not_hear_names_and_sources():
    made = recipe(DIGITS + "at_base")
    noted = dataclasses.replace(made, sources=dict.fromkeys(FIELDS, "elsewhere"))
    assert noted.digest == made.digest
    assert noted == made


def test_one_training_budget_for_all_digits_models():
    recipes = [recipe(name) for name in all_names() if name.startswith(DIGITS)]
    assert len(recipes) == 48
    for field in BUDGET:
        assert len({getattr(made, field) for made in recipes}) == 1, field
    for made in recipes:
        assert made.threat_model == ThreatModel.parse("linf:1/10")
        assert (made.augmentation, made.attack_step_ratio, made.init) == ("none", 2.5, "random")
        assert (made.attack_start, made.attack_loss) == {
            "at": ("uniform", "ce"),
            "trades": ("gaussian", "kl"),
            "alp": ("uniform", "ce"),
            "mart": ("gaussian", "ce"),
        }[made.loss]


def test_a_weight_in_the_name():
    made = recipe("vit_l16.imagenet_linf.trades1_trh")
    assert (made.loss_weight, made.sources["loss_weight"]) == (1.0, "the name (trades1)")
    assert recipe("vit_l16.imagenet_linf.trades_trh").loss_weight == 6.0
    assert made.name == "vit_l16.imagenet_linf.trades1_trh"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("vit_l16.imagenet_linf.at", UnknownName),
        ("vit_l16.digits_linf.at_base", IncompatibleName),
        (None, UnknownName),
    ],
)
def test_no_recipe_for_a_wrong_name(name, error):
    with pytest.raises(error):
        recipe(name)


@pytest.mark.parametrize(
    ("name", "passes", "forward", "backward", "training", "equivalents"),
    [
        (DIGITS + "at_base", "10 (F + B) + T", 10, 10, 1, 23),
        (DIGITS + "at_trh", "10 (F + B) + T", 10, 10, 1, 23),
        (DIGITS + "trades_base", "F + 10 (F + B) + 2 T", 11, 10, 2, 27),
        (DIGITS + "at_swa", "10 (F + B) + T", 10, 10, 1, 23),
        (DIGITS + "at_s2o", "10 (F + B) + 2 T", 10, 10, 2, 26),
        (DIGITS + "at_awp", "10 (F + B) + 2 T", 10, 10, 2, 26),
        (DIGITS + "at_s2o_awp_swa", "10 (F + B) + 3 T", 10, 10, 3, 29),
        (DIGITS + "trades_s2o", "F + 10 (F + B) + 2 T", 11, 10, 2, 27),
        (DIGITS + "trades_awp", "F + 10 (F + B) + 4 T", 11, 10, 4, 33),
        (DIGITS + "alp_base", "10 (F + B) + 2 T", 10, 10, 2, 26),
        (DIGITS + "mart_trh", "10 (F + B) + 2 T", 10, 10, 2, 26),
        ("vit_l16.imagenet_linf.at_base", "7 (F + B) + T", 7, 7, 1, 17),
        ("vit_l16.imagenet_linf.trades_trh", "F + 7 (F + B) + 2 T", 8, 7, 2, 21),
    ],
)
def test_cost_in_passes(name, passes, forward, backward, training, equivalents):
    made = recipe(name)
    cost = made.cost()
    assert cost["passes_per_step"] == passes
    assert (cost["forward"], cost["input_backward"], cost["training"]) == (forward, backward, training)
    assert cost["forward_equivalents"] == equivalents
    assert cost["images_seen"] == made.total_steps * made.batch_size
    changes = {"epochs": 3, "warmup_steps": 0, "attack_warmup_steps": 0}
    assert recipe(name, changes).cost()["epochs"] == pytest.approx(3, abs=0.1)


@pytest.mark.parametrize("name", FEW)
def test_describe_gives_values_that_set_takes_back(name):
    made = recipe(name)
    rows = describe(made)
    assert [field for field, _, _ in rows] == list(FIELDS)
    for field, value, source in rows:
        assert source == made.sources[field]
        if field != "defences":
            assert read_value(field, value) == getattr(made, field)


class TestStrictDocuments:
    document = recipe(DIGITS + "trades_trh").to_json()

    @pytest.mark.parametrize("key", ["schema", "name", "base_name", "total_steps", "loss_weight", "sources"])
    def test_missing_key(self, key):
        with pytest.raises(RobustzooError, match=f"lacks {key}"):
            Recipe.from_json({k: v for k, v in self.document.items() if k != key})

    def test_unknown_key_suggests(self):
        with pytest.raises(RobustzooError, match=r"'total_step'.*Did you mean total_steps"):
            Recipe.from_json(self.document | {"total_step": 3})
        with pytest.raises(RobustzooError, match=r"'base_le' in sources.*base_lr"):
            Recipe.from_json(self.document | {"sources": {"base_le": "x"}})

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            ({"schema": "robustzoo.recipe/9"}, "another version"),
            ({"name": 3}, "name: 3"),
            ({"name": DIGITS + "at_base"}, "neither"),
            ({"name": DIGITS + "trades_trh+00000000"}, "neither"),
            ({"base_name": "vit_l16.imagenet_linf.trades_trh"}, "does not go with"),
            ({"base_name": "nobody"}, "base_name: 'nobody' is not a model name"),
            ({"loss": "at"}, "loss_weight 6.0 does not go with loss at"),
            ({"defences": []}, "does not go with defences"),
            ({"image_size": 16}, "image_size: 16 does not go with"),
            ({"num_classes": 1}, "num_classes: 1 is not allowed: expected a whole number at least 2"),
            ({"threat_model": "linf:-8/255"}, "'-8/255' .* is not a positive number"),
            ({"architecture": "vit_x"}, "architecture: 'vit_x' does not go with"),
            ({"dataset": "mnist"}, "dataset: 'mnist' does not go with"),
            ({"total_steps": "x"}, "total_steps: 'x' is not allowed: expected a whole number"),
            ({"total_steps": 2.0}, "total_steps: 2.0"),
            ({"total_steps": True}, "total_steps: True"),
            ({"base_lr": float("nan")}, "base_lr: nan"),
            ({"mean": [0.1, 0.2]}, "one for each of the 1 channels"),
            ({"std": [0.0]}, "std"),
            ({"threat_model": "linf:8"}, "threat_model: .*did you mean linf:8/255"),
            ({"sources": {}}, "no source for architecture"),
            ({"sources": [1]}, "sources must be"),
            ({"sources": {"base_lr": 3}}, "sources: base_lr has 3"),
            ({"sources": {"base_lr": "ours |\n\n**99.9 %**"}}, "one line"),
            ({"sources": {"base_lr": "x" * 1001}}, "one line"),
        ],
    )
    def test_wrong_value(self, change, problem):
        with pytest.raises(RobustzooError, match=problem):
            Recipe.from_json(self.document | change)

    @pytest.mark.parametrize("document", [None, [], "x", 3])
    def test_not_an_object(self, document):
        with pytest.raises(RobustzooError, match="JSON object"):
            Recipe.from_json(document)


class TestFiles:
    def write(self, folder, document):
        path = folder / "mine.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return path

    @pytest.mark.parametrize("name", [DIGITS + "at_trh", "vit_l16.imagenet_linf.trades1_trh"])
    def test_a_whole_document_is_its_recipe(self, tmp_path, name):
        for made in (recipe(name), recipe(name, {"total_steps": 1234})):
            path = self.write(tmp_path, made.to_json())
            assert recipe(str(path)) == recipe(path) == made
            assert recipe(path).sources == made.sources

    def test_an_edited_document_gets_another_name_and_an_honest_source(self, tmp_path):
        document = recipe(DIGITS + "at_trh").to_json() | {"trh_lambda": 0.5}
        made = recipe(self.write(tmp_path, document))
        assert made.name == f"{DIGITS}at_trh+{made.digest[:8]}"
        assert made.sources["trh_lambda"].startswith(
            f"the recipe file (was {recipe(DIGITS + 'at_trh').trh_lambda:g}"
        )
        assert made == recipe(DIGITS + "at_trh", {"trh_lambda": "0.5"})

    def test_only_the_changes(self, tmp_path):
        path = self.write(
            tmp_path,
            {"base_name": DIGITS + "at_base", "base_lr": 0.01, "sources": {"base_lr": "a hunch"}},
        )
        made = recipe(path, {"total_steps": 500})
        assert (made.base_lr, made.sources["base_lr"], made.total_steps) == (0.01, "a hunch", 500)
        assert made.base_name == DIGITS + "at_base"

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("", "cannot read the recipe file .*: it is empty.*make it anew with `robustzoo recipe NAME"),
            ('{\n "base_lr": 1,\n', "no valid JSON: it is cut off at its end, in line 2; mend it there, or"),
            ('{\n "base_lr": 1\n "x": 2}', r"no valid JSON in line 3, column 2: Expecting ',' delimiter"),
            ('{\n "base_lr": one}', "no valid JSON in line 2, column 13: Expecting value; mend it there"),
            ("[]", "JSON object"),
            ("{}", "base_name is missing"),
            ('{"base_name": 3}', "base_name: 3"),
            ('{"base_name": "vit_micro2.digits_linf.at_base", "batchsize": 3}', "Did you mean batch_size"),
            ('{"base_name": "vit_micro2.digits_linf.at_base", "base_lr": -1}', "base_lr: -1"),
            ('{"base_name": "vit_micro2.digits_linf.at_base", "base_lr": NaN}', "base_lr: nan"),
            ('{"base_name": "vit_micro2.digits_linf.at_base", "dataset": "imagenet"}', "name fixes"),
            ('{"base_name": "vit_micro2.digits_linf.at_base", "base_lr": 1, "base_lr": 2}', "repeats"),
            ('{"base_name": "vit_micro2.digits_linf.at_base", "base_lr": "fast"}', "a finite number"),
            (
                '{"base_name": "vit_micro2.digits_linf.at_base", "name": "vit_micro2.digits_linf.at_trh"}',
                "leave name out",
            ),
        ],
    )
    def test_bad_files(self, tmp_path, text, problem):
        path = self.write(tmp_path, text)
        with pytest.raises(RobustzooError, match=problem) as refused:
            recipe(path)
        assert str(path) in str(refused.value) and "--set" not in str(refused.value)

    def test_a_byte_order_mark_is_read_over(self, tmp_path):
        (tmp_path / "r.json").write_text(json.dumps({"base_name": DIGITS + "at_trh"}), encoding="utf-8-sig")
        assert recipe(tmp_path / "r.json").digest == recipe(DIGITS + "at_trh").digest

    def test_a_file_cut_off_anywhere_is_called_so(self, tmp_path):
        sources = {"base_lr": 'a "hunch"\\ \u00e9'}
        document = {"base_name": DIGITS + "at_trh", "base_lr": -1.5e-7, "sources": sources}
        text = json.dumps(document | {"more": [None, True, False]}, indent=1)
        for length in range(1, len(text)):
            path = self.write(tmp_path, text[:length])
            line = len(text[:length].rstrip().splitlines())
            with pytest.raises(RobustzooError, match=f"it is cut off at its end, in line {line};"):
                recipe(path)

    def test_a_wrong_base_name_is_said_with_the_file(self, tmp_path):
        path = self.write(tmp_path, {"base_name": "vit_micro2.digits_linf.at_trx"})
        with pytest.raises(UnknownName, match=f"{re.escape(str(path))}.*Did you mean"):
            recipe(path)

    def test_epochs_and_data_range_as_on_the_command_line(self, tmp_path):
        base = "vit_micro2.digits_linf.at_base"
        path = self.write(tmp_path, {"base_name": base, "epochs": 20, "data_range": "[-1,1]"})
        assert recipe(path) == recipe(base, {"epochs": 20, "data_range": "[-1,1]"})

    def test_a_recipe_file_is_called_json(self, tmp_path):
        path = tmp_path / "mine.txt"
        path.write_text('{"base_name": "vit_micro2.digits_linf.at_base"}')
        with pytest.raises(RobustzooError, match=r"ends in \.json"):
            recipe(str(path))

    def test_missing_and_unreadable_files(self, tmp_path):
        with pytest.raises(RobustzooError, match="no recipe file"):
            recipe(tmp_path / "none.json")
        with pytest.raises(RobustzooError, match=r"cannot read.*`robustzoo recipe NAME --json`"):
            recipe(tmp_path)
        (tmp_path / "latin.json").write_bytes(b"\xff\xfe\x00")
        with pytest.raises(RobustzooError, match=r"cannot read.*`robustzoo recipe NAME --json`"):
            recipe(tmp_path / "latin.json")


@given(
    st.sampled_from(all_names()),
    st.fixed_dictionaries(
        {},
        optional={
            "total_steps": st.integers(20_000, 10**9),
            "batch_size": st.integers(2, 10**9),
            "base_lr": st.floats(1e-12, 1e6),
            "gradient_clipping": st.floats(0, 1e3),
            "attack_steps": st.integers(1, 1000),
            "momentum": st.floats(0, 1, exclude_max=True),
            "std": st.tuples(st.floats(1e-3, 10)),
            "threat_model": st.builds(ThreatModel, st.just("l2"), st.fractions("1/1000", 8)),
            "optimizer": st.sampled_from(["sgd", "adam"]),
        },
    ),
)
def test_changed_recipes_round_trip(name, changes):
    made = recipe(name, changes)
    assert Recipe.from_json(json.loads(json.dumps(made.to_json()))) == made
    as_text = {
        key: ",".join(map(repr, value)) if isinstance(value, tuple) else str(value)
        for key, value in changes.items()
    }
    assert recipe(name, as_text) == made
    assert (made.name == name) == (made.digest == recipe(name).digest)
    assert write_value(made.threat_model) == str(made.threat_model)


def test_a_training_that_stopped_early_has_another_name():
    made = recipe(DIGITS + "at_trh")
    short = partial(made, steps=20)
    assert short.name == f"{made.name}+{short.digest[:8]}" and short.base_name == made.name
    assert (short.stop_after, short.total_steps) == (20, made.total_steps)
    assert partial(made, steps=made.total_steps) == made == partial(made)
    assert Recipe.from_json(short.to_json()) == short
    with pytest.raises(RobustzooError, match="stop_after"):
        partial(made, steps=made.total_steps + 1)


def test_a_training_on_a_part_of_the_data_has_another_name():
    made = recipe("vit_l16.imagenet_linf.at_trh", {"extra_data": "none"})
    part = partial(made, images=63)
    assert (part.training_images, part.total_steps) == (63, made.total_steps)
    assert part.name == f"{made.name}+{part.digest[:8]}"
    assert part.sources["training_images"].startswith("what the training really did")
    assert part.cost()["epochs"] == pytest.approx(200_000 * 64 / 63, rel=1e-3)
    assert partial(made, images=1_281_167) == made
    both = partial(made, steps=2, images=63)
    assert (both.stop_after, both.training_images) == (2, 63) and both.name != part.name
    assert both.cost()["images_seen"] == 2 * 64
    assert Recipe.from_json(both.to_json()) == both
    for images in (0, -1, 1_281_168):
        with pytest.raises(RobustzooError, match="training_images"):
            partial(made, images=images)


def test_another_number_of_generated_images_has_another_name():
    made = recipe("vit_l16.cifar10_linf.at_trh")
    assert partial(made, generated=1_000_000) == made == partial(made)
    few = partial(made, generated=5_000)
    assert few.extra_data == "ddpm:5000" and few.name == f"{made.name}+{few.digest[:8]}"
    assert few == recipe(made.name, {"extra_data": "ddpm:5000"})
    assert few == Recipe.from_json(few.to_json()) == partial(few, generated=5_000)
    with pytest.raises(RobustzooError, match="extra_data"):
        partial(recipe(DIGITS + "at_trh"), generated=5_000)


def test_images_seen_are_original_and_generated():
    cost = recipe("vit_l16.cifar100_linf.at_base").cost()
    assert cost["images_seen"] == 40_000 * 768
    assert cost["generated_images_seen"] == 40_000 * round(0.7 * 768)
    assert cost["epochs"] == 40_000 * (768 - round(0.7 * 768)) / 50_000
    assert recipe("vit_l16.imagenet_linf.at_base").cost()["generated_images_seen"] == 0


def test_a_patch_of_16_has_no_network_for_32_pixels():
    """On 32x32 images the name means the network of overlapping patches of 4, never one of 2x2 patches."""
    document = recipe("vit_b16.imagenet_linf.at_base").to_json()
    with pytest.raises(RobustzooError, match="image_size: 32 does not go with"):
        Recipe.from_json(document | {"image_size": 32})
    for key in ("vit_b16", "vit_l16"):
        assert "patch_size" not in ARCHITECTURES[key].networks[32].model_args
    with pytest.raises(IncompatibleName, match="use vit_ti4"):
        recipe("vit_b16.cifar10jpg_linf.at_base")


def test_a_local_initial_file_is_part_of_the_recipe():
    made = recipe(DIGITS + "at_trh", {"init": f"file:{'a' * 64}"})
    assert made.name != made.base_name
    with pytest.raises(RobustzooError, match="init"):
        recipe(DIGITS + "at_trh", {"init": "file:weights.safetensors"})


@pytest.fixture
def later_stop_after(monkeypatch):
    """`stop_after` as if it had been added after the recipes of today were published."""
    before = recipe(DIGITS + "at_trh").digest
    monkeypatch.setitem(FIELDS, "stop_after", dataclasses.replace(FIELDS["stop_after"], later=True))
    neutral.cache_clear()
    yield before
    neutral.cache_clear()


def test_a_later_field_that_is_not_used_leaves_documents_and_digests_as_they_were(later_stop_after):
    made = recipe(DIGITS + "at_trh")
    document = made.to_json()
    assert "stop_after" not in document and "stop_after" not in document["sources"]
    assert made.digest == science_digest({k: v for k, v in made.science.items() if k != "stop_after"})
    assert made.digest != later_stop_after
    again = Recipe.from_json(document)
    assert again == made and again.sources == made.sources and again.to_json() == document
    assert "| `stop_after`" not in recipe_table(made) and ("stop_after", "none") in {
        row[:2] for row in describe(made)
    }


def test_a_later_field_in_use_is_stated(later_stop_after, tmp_path):
    made = recipe(DIGITS + "at_trh", {"stop_after": 20})
    assert made.to_json()["stop_after"] == 20 and made.digest == science_digest(made.science)
    assert made.name != made.base_name and "| `stop_after`" in recipe_table(made)
    assert Recipe.from_json(made.to_json()) == made
    back = recipe(DIGITS + "at_trh")
    back = dataclasses.replace(back, sources=back.sources | {"stop_after": "asked for"})
    assert back == Recipe.from_json(back.to_json()) and back.to_json()["stop_after"] is None
    assert back.digest == recipe(DIGITS + "at_trh").digest
