"""The rendered card of every registry name, and what the lint finds in cards that were tampered with."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from robustzoo.cards import CardError, Claim, Evidence, lint_card, render_card
from robustzoo.cards.evidence_rules import protocol_digest
from robustzoo.cards.head import attacks_svg
from robustzoo.cards.holdings import all_evidence
from robustzoo.cards.metadata import read_block
from robustzoo.cards.render import SECTIONS
from robustzoo.registry import all_names, published, recipe
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS, LOSSES
from robustzoo.registry.recipes import Recipe

NAME = "vit_micro2.digits_linf.trades_trh"
LICENCE = "apache-2.0"
SHA256 = "c" * 64
MODEL_CARDS = Path(__file__).resolve().parents[2] / "model_cards"


@pytest.fixture
def measured(sections):
    """measured(name=NAME, **changes) -> (recipe, Evidence) of a registry name."""

    def make(name=NAME, **changes):
        made = recipe(name)
        given = sections(name=name, threat_model=made.threat_model)
        spec = DATASETS[made.dataset]
        given["dataset"].update(id=made.dataset, num_classes=spec.num_classes)
        given.update(changes)
        return made, Evidence.build(**given)

    return make


@pytest.fixture
def text(measured):
    return render_card(*measured(), SHA256, LICENCE)


@pytest.fixture
def first_layout(measured):
    return render_card(*measured(), SHA256, LICENCE, layout=1)


def rows_of(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


@pytest.mark.parametrize("name", all_names()[::37])  # every method, every network with every dataset
def test_cards_are_clean_and_say_what_recipe_and_evidence_say(measured, name):
    made, evidence = measured(name)
    text = render_card(made, evidence, SHA256, LICENCE)
    assert lint_card(text, made, evidence) == []
    assert Claim.from_card(text) == [Claim.from_evidence(evidence)]
    assert text == render_card(made, Evidence(evidence.doc), SHA256, LICENCE)
    assert LOSSES[made.loss].title in text and DATASETS[made.dataset].licence in text
    (row,) = [row for row in rows_of(text) if row[0].startswith("**robust**")]
    assert row[2:] == ["4 / 10", "**40.0 %**", "12.2 to 73.8 %", "apgd-ce: 2, apgd-t: 2"]
    rows = {row[0].strip("`"): row for row in rows_of(text)}
    for field in made.stated:
        assert rows[field][3] == made.sources[field].replace("|", "\\|"), field
    assert rows["threat_model"][1] == str(made.threat_model)


def test_metadata_is_what_the_hub_expects(text):
    block = read_block(text)
    assert block["license"] == "apache-2.0"
    assert (block["library_name"], block["pipeline_tag"]) == ("timm", "image-classification")
    assert block["tags"] == ["robustzoo", "adversarial-robustness", "linf", "trades", "trh"]
    assert block["datasets"] == ["digits"] and block["metrics"] == ["accuracy"]
    assert "base_model" not in block
    assert block["robustzoo"] == {
        "schema": 1,
        "weights_sha256": SHA256,
        "recipe_digest": recipe(NAME).digest,
        "layout": 2,
    }


def test_initial_checkpoint_and_its_licence_are_named(measured):
    text = render_card(*measured("vit_l16.imagenet_linf.at_trh"), SHA256, LICENCE)
    block = read_block(text)
    assert block["base_model"] == "timm/vit_large_patch16_224.augreg_in21k"
    assert block["datasets"] == ["ILSVRC/imagenet-1k"]
    assert re.search(
        r"Initial weights: \[timm/vit_large_patch16_224.augreg_in21k\].*Licence: apache-2.0", text
    )


def test_both_checkpoints_of_a_hybrid_are_named(measured):
    text = render_card(*measured("hybrid_l16.imagenet_l2.at_awp"), SHA256, LICENCE)
    tags = ("vit_base_r50_s16_224.orig_in21k", "vit_large_patch16_224.augreg_in21k")
    assert read_block(text)["base_model"] == [f"timm/{tag}" for tag in tags]
    revisions = ARCHITECTURES["hybrid_l16"].init_revision.split("+")
    for tag, revision in zip(tags, revisions, strict=True):
        assert f"[timm/{tag}](https://huggingface.co/timm/{tag}), revision {revision}" in text


def test_a_source_that_the_registry_had_stays_on_a_card_and_no_other_text_does(measured):
    """Published cards keep their bytes where the registry's words are corrected."""
    made, evidence = measured()
    for told, shown in (
        ("not used: the whole training split", "not used: the whole training split"),
        ("a whim", made.sources["training_images"]),
    ):
        noted = dataclasses.replace(made, sources=made.sources | {"training_images": told})
        row = next(
            row
            for row in rows_of(render_card(noted, evidence, SHA256, LICENCE))
            if row[0] == "`training_images`"
        )
        assert row[3] == shown


def test_generated_and_other_training_images_are_named(measured):
    made = recipe("vit_l16.cifar10_linf.at_base", {"training_data": "cifar10jpg"})
    _, evidence = measured("vit_l16.cifar10_linf.at_base")
    evidence.doc["model"]["name"] = made.name
    text = render_card(made, Evidence(evidence.doc), SHA256, LICENCE)
    assert "- Training images: CIFAR-10 re-encoded as JPEG" in text and "- Test images: CIFAR-10;" in text
    assert "Generated images, 70% of each batch: 1M DDPM images (Gowal et al. 2021)" in text
    assert (
        "**A changed recipe**: that of `vit_l16.cifar10_linf.at_base` with "
        "`training_data=cifar10jpg` (was cifar10). It is not that model." in text
    )


def test_another_number_of_generated_images_is_stated(measured):
    made = recipe("vit_l16.cifar10_linf.at_base", {"extra_data": "ddpm:5000"})
    _, evidence = measured("vit_l16.cifar10_linf.at_base")
    evidence.doc["model"]["name"] = made.name
    text = render_card(made, Evidence(evidence.doc), SHA256, LICENCE)
    assert "- Generated images, 70% of each batch: 5,000, and not the 1M DDPM images of Gowal" in text
    assert "with `extra_data=ddpm:5000` (was ddpm). It is not that model." in text


def test_an_unchanged_recipe_is_not_called_changed(text):
    assert "changed recipe" not in text


def test_every_part_of_a_method_is_cited(measured):
    text = render_card(*measured("vit_micro2.digits_linf.mart_trh_awp_swa"), SHA256, LICENCE)
    for key in ("wang2023improving", "wang2020improving", "wu2020adversarial", "izmailov2018averaging"):
        assert f"{{{key}," in text


def test_code_for_people(text):
    (python,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    compile(python, "card", "exec")
    assert f'robustzoo.load("{NAME}")' in python
    commands = "".join(re.findall(r"```bash\n(.*?)```", text, re.DOTALL)).splitlines()
    assert commands == [
        f"robustzoo verify {NAME}",
        f"robustzoo verify {NAME} --mode spot",
        f"robustzoo verify {NAME} --mode full",
        f"deepspeed training/train.py {NAME} --out runs/{NAME}",
    ]
    for words in (
        "pixels in [0, 1]",
        "expects normalised",
        "upper bound",
        "CVPR",
        "CC BY 4.0",
        "mean 0.3 and std 0.37",
    ):
        assert words in text


def test_citation_names_method_loss_and_attacks(measured):
    at, trades = (
        render_card(*measured(f"vit_micro2.digits_linf.{m}"), SHA256, LICENCE)
        for m in ("at_base", "trades_trh")
    )
    assert re.findall(r"@inproceedings\{(\w+),", at) == [
        "wang2023improving",
        "madry2018towards",
        "croce2020reliable",
    ]
    assert re.findall(r"@inproceedings\{(\w+),", trades)[1] == "zhang2019theoretically"


@pytest.mark.parametrize(
    ("protocol", "weaker"), [("aa-standard", False), ("aa-plus", False), ("apgd-ce+t", True)]
)
def test_what_tries_less_than_the_standard_is_said(measured, sections, protocol, weaker):
    members = sections()["protocol"]["members"]
    stated = {"name": protocol, "members": members, "digest": protocol_digest(protocol, members)}
    text = render_card(*measured(protocol=stated), SHA256, LICENCE)
    assert (f"`{protocol}` tries less than `aa-standard`" in text) is weaker


def test_card_with_two_evaluations(measured):
    made, first = measured()
    _, second = measured(threat_model="linf:1/20", passes={"forward": 1, "backward": 1})
    text = render_card(made, [first, second], SHA256, LICENCE)
    assert lint_card(text, made, [first, second]) == []
    assert [row[0] for row in rows_of(text.split("## Results")[1])[:5]][2:] == [
        "clean",
        "**robust**, L∞ 1/10",
        "**robust**, L∞ 1/20",
    ]
    assert len(Claim.from_card(text)) == 2
    less = render_card(made, first, SHA256, LICENCE)
    for card, documents in ((less, [first, second]), (text, first)):
        (problem,) = lint_card(card, made, documents)
        assert re.search(r"the metadata\b.*(should|follow)", problem)


def test_card_of_a_changed_recipe(measured, sections):
    changed = recipe(NAME, {"trh_lambda": "1e-4"})
    evidence = Evidence.build(**sections(name=changed.name))
    text = render_card(changed, evidence, SHA256, LICENCE)
    assert lint_card(text, changed, evidence) == []
    assert "deepspeed training/train.py recipe.json" in text
    # Without its recipe nothing says what the name stands for.
    assert any("not a model name" in problem for problem in lint_card(text))


def test_render_refuses_evidence_of_something_else(measured):
    made, evidence = measured()
    with pytest.raises(CardError, match="at_base"):
        render_card(recipe("vit_micro2.digits_linf.at_base"), evidence, SHA256, LICENCE)
    with pytest.raises(CardError, match="e" * 64):
        render_card(made, evidence, "e" * 64, LICENCE)
    with pytest.raises(CardError, match="64 lower-case hex digits"):
        render_card(made, evidence, "C" * 64, LICENCE)
    with pytest.raises(CardError, match="no evidence"):
        render_card(made, [], SHA256, LICENCE)


def test_no_licence_is_assumed(measured):
    with pytest.raises(TypeError, match="license"):
        render_card(*measured(), SHA256)
    text = render_card(*measured(), SHA256, "unknown")
    assert "license: unknown" in text and "their author has not licensed them" in text
    unlicensed = text.replace("license: unknown\n", "")
    assert "metadata lacks license" in lint_card(unlicensed)
    made, evidence = measured()
    assert any("should" in problem for problem in lint_card(unlicensed, made, evidence))


TAMPERED = [
    ("license: apache-2.0\n", "", "lacks license"),
    ("license: apache-2.0", "license: Apache 2.0", "SPDX"),
    ("library_name: timm", "library_name: keras", "library_name"),
    ("pipeline_tag: image-classification", "pipeline_tag: text-generation", "pipeline_tag"),
    ("- robustzoo\n", "", "'robustzoo'"),
    ("- trh\n", "", "'- trh'"),
    ("datasets:\n- digits\n", "", "lacks datasets"),
    ("metrics:\n- accuracy\n", "", "lacks metrics"),
    ("model-index:", "model_index:", "model-index"),
    (f'weights_sha256: "{SHA256}"', f'weights_sha256: "{"e" * 64}"', "the evidence is about weights"),
    (f'  weights_sha256: "{SHA256}"\n', "", "lacks robustzoo.weights_sha256"),
    (f"`{SHA256}`", "`(lost)`", "states the sha256 (lost) of the weights"),
    ("recipe_digest: ", "recipe_digest: x", "recipe_digest"),
    ("value: 0.4", "value: 0.9", "does not match"),
    ("value: 0.4\n", "value: 0.4\n      verified: true\n", "belong to the Hub"),
    ("correct: 4\n", "correct: 11\n", "0 <= correct <= n"),
    ('epsilon: "1/10"', "epsilon: 0.1", "quoted text"),
    ('epsilon: "1/10"', 'epsilon: "0.1"', "must be written"),
    ('epsilon: "1/10"', 'epsilon: "1/5"', "lacks the row that the metadata gives: robust, L∞ 1/5"),
    ("seed: 0", "seed: 1", "seed: 1', and should be"),
    (f"name: {NAME}", "name: vit_micro3.digits_linf.trades_trh", "unknown architecture"),
    (f"name: {NAME}", "name: vit_micro2.digits_linf.at_base", "the recipe is"),
    ("| 4 / 10 |", "| 9 / 10 |", "does not give: robust, L∞ 1/10 | apgd-ce+t | 9 / 10"),
    ("| 8 / 10 |", "| 9 / 10 |", "does not give: clean | none | 9 / 10"),
    (
        "**40.0 %**",
        "**90.0 %**",
        "does not give: robust, L∞ 1/10 | apgd-ce+t | 4 / 10 | 90.0 %",
    ),
    ("12.2 to 73.8 %", "32.2 to 73.8 %", "apgd-ce+t | 4 / 10 | 40.0 % | 32.2 to 73.8 %"),
    ("| clean | none |", "| clean | all |", "does not give: clean | all | 8 / 10"),
    ("## Verify", "| robust | 9 / 10 |\n\n## Verify", "does not give: robust | 9 / 10"),
    ("apgd-ce: 2, apgd-t: 2", "apgd-ce: 2", "73.8 % | broken by attacks: 2"),
    ("apgd-ce: 2, apgd-t: 2", "apgd-ce: 4, apgd-t: 0", "of the text is '| **robust**"),
    (
        "broke 4 of the 8",
        "broke 1 of the 8",
        "correct images: 1, 8, the metadata gives broken of correct images: 4, 8",
    ),
    (
        "10 images (",
        "500 images (",
        "seed: apgd-ce+t, 500, 0, the metadata gives protocol, images and seed: apgd-ce+t, 10, 0",
    ),
    ("off by 3 images", "off by 1 images", "images: 1, the metadata gives allowed difference in images: 3"),
    ("| 80.0 % | **40.0 %** |", "| 80.0 % | **44.0 %** |", "table at the top is not the one"),
    ("  layout: 2\n", "  layout: 3\n", "layout 3"),
    ("  layout: 2\n", "  layout: yes\n", "layout True"),
    ("  layout: 2\n", "", "and should be '## Results'"),
    ("<summary>All", "<summary>None of", "of the text is '<summary>None"),
    (f"# {NAME}\n", "# other\n", "heading names 'other'"),
    (f'load("{NAME}")', 'load("other")', "text is 'model = robustzoo.load"),
    ("## Results", "See /home/someone/notes.md\n\n## Results", "'/home/someone/notes.md'"),
    ("## Results", "See C:\\runs and ~/runs.\n\n## Results", "one machine only"),
]


@pytest.mark.parametrize(("old", "new", "words"), TAMPERED, ids=[words for *_, words in TAMPERED])
def test_lint_finds(measured, text, old, new, words):
    assert old in text
    problems = lint_card(text.replace(old, new), *measured())
    assert any(words in problem for problem in problems), problems


def test_lint_of_numbers_forged_in_metadata_and_text_alike(measured, text):
    forged = text.replace("correct: 4\n", "correct: 7\n").replace("value: 0.4", "value: 0.7")
    for true, claimed in (
        ("4 / 10", "7 / 10"),
        ("**40.0 %** | 12.2 to 73.8 %", "**70.0 %** | 34.8 to 93.3 %"),
        ("apgd-ce: 2, apgd-t: 2", "apgd-ce: 1, apgd-t: 0"),
        ("broke 4 of the 8", "broke 1 of the 8"),
    ):
        assert true in forged
        forged = forged.replace(true, claimed)
    assert lint_card(forged) == []
    assert any("value: 0.7', and should be" in p for p in lint_card(forged, *measured()))


def test_lint_of_no_card_is_one_problem():
    assert len(lint_card("# nothing")) == 1


def test_urls_fractions_and_relative_paths_are_no_absolute_paths(text):
    harmless = "see https://example.org/a/b, [x](docs/a/b.md), runs/x/y, 8/255, and/or, `local-dir:FOLDER`"
    assert lint_card(text.replace("## Results", f"{harmless}\n\n## Results")) == []


def test_there_is_a_card_for_every_published_model_and_it_is_clean():
    names = {entry.name for entry in published()}
    assert {path.stem for path in MODEL_CARDS.glob("*.md")} == names
    for entry in published():
        text = (MODEL_CARDS / f"{entry.name}.md").read_text(encoding="utf-8")
        assert lint_card(text) == []
        assert entry.weights.sha256 in text


def test_card_of_a_network_of_timm_says_what_it_is_and_how_to_load_it(sections):
    changes = {"architecture": "timm:convnext_atto", "model_args": {"depths": [1, 1, 1, 1]}}
    made = recipe("resnet18.cifar10jpg_linf.at_base", changes)
    given = sections(name=made.name, threat_model=made.threat_model)
    given["dataset"].update(id=made.dataset, num_classes=10)
    evidence = Evidence.build(**given)
    text = render_card(made, evidence, SHA256, LICENCE)
    assert '- Network: `convnext_atto` of timm with `{"depths": [1, 1, 1, 1]}`.' in text
    assert 'robustzoo.load("local-dir:FOLDER")' in text and "`recipe.json`" in text
    assert lint_card(text, made, [evidence]) == []


def test_a_card_of_the_first_layout_stands_as_it_is(measured, text, first_layout):
    """Its metadata name no layout; but for its order, it says nothing else. Notes avoid its headings."""
    assert (
        lint_card(first_layout, *measured()) == [] and "layout" not in read_block(first_layout)["robustzoo"]
    )
    assert tuple(re.findall(r"^## (.+)$", first_layout, re.MULTILINE)) == SECTIONS
    assert {*first_layout.splitlines()} - {*text.splitlines()} == {
        "## Load",
        "## Limits",
        "# logits = model(images), images: float32 (B, 1, 8, 8), pixels in [0, 1]",
    }
    for entry in published():
        folder = entry.weights.folder
        made = Recipe.from_json(json.loads((folder / "config.json").read_text())["robustzoo"]["recipe"])
        assert lint_card((folder / "README.md").read_text(), made, all_evidence(folder)) == []


def test_the_head_has_a_line_for_each_threat_model_and_the_recipe_is_folded(measured):
    made, first = measured()
    _, second = measured(threat_model="linf:1/20", passes={"forward": 1, "backward": 1})
    members = first.doc["protocol"]["members"][:1]
    weaker = {"name": "apgd-ce", "members": members, "digest": protocol_digest("apgd-ce", members)}
    samples = [s for s in first.doc["samples"] if (s["broken_by"] or {}).get("attack") != "apgd-t"]
    left = {"indices": [s["id"] for s in samples], "subset": "chosen8", "digest": "e" * 64}
    dataset = {**first.doc["dataset"], **left}
    third = measured(protocol=weaker, samples=samples, dataset=dataset, witnesses=None)[1]
    text = render_card(made, [first, second, third], SHA256, LICENCE)
    assert lint_card(text, made, [first, second, third]) == []
    head, rest = text.split("## Results")
    assert [row[0] for row in rows_of(head)][2:] == ["L∞ 1/10", "L∞ 1/20"]
    assert rows_of(head)[2][1:] == [
        "`apgd-ce+t`",
        "10 of digits test",
        "80.0 %",
        "**40.0 %**",
        "12.2 to 73.8 %",
    ]
    recipe_text = rest.split("## Recipe")[1].split("## Train")[0]
    assert recipe_text.strip().startswith("<details>\n<summary>All") and recipe_text.strip().endswith(
        "</details>"
    )
    svg = attacks_svg([first, second, third])
    assert svg == attacks_svg([Evidence(e.doc) for e in (first, second, third)]) and len(svg) < 10_000
    found = [node.text for node in ElementTree.fromstring(svg).iter() if node.tag.endswith("text")]
    assert [t for t in found if t.endswith("%") and "," not in t] == ["80.0 %", "60.0 %", "40.0 %"] * 2
