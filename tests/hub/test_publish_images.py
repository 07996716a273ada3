"""Images of strangers and parts carry no catalog name into a card, and nothing weaker replaces a result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import robustzoo
from robustzoo.cards.claims import CardError
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.holdings import evidence_files
from robustzoo.cli import group
from robustzoo.data.sources import TensorSource
from robustzoo.hub import publish
from robustzoo.models import pixel_model, write_folder
from robustzoo.registry import lookup, recipe
from robustzoo.registry.digests import sha256_file

NAME = "vit_micro2.digits_linf.at_base"


@pytest.fixture
def folder(tmp_path):
    write_folder(tmp_path / "run", pixel_model(recipe(NAME)), recipe(NAME))
    return tmp_path / "run"


def evaluated(folder, data="digits", **options):
    model = robustzoo.load(f"local-dir:{folder}")
    options = {"protocol": "pgd-2", "n": 8, **options}
    return robustzoo.evaluate(model, data, out=folder, progress=False, **options)


def strangers(n):
    """n images that are none of the digits, under their name."""
    x = torch.rand(n, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    images = TensorSource(x, torch.arange(n) % 10, num_classes=10)
    images.key = "digits"
    return images


@pytest.mark.parametrize(
    ("images", "n", "words"),
    [
        (27, None, "27 images are called all of digits"),
        (500, None, "other images"),
        (40, 8, "dataset digest"),
    ],
)
def test_images_of_strangers_called_digits_reach_no_card(folder, checkout, images, n, words):
    evaluated(folder, strangers(images), n=n)
    for call in (publish.card_text, publish.publish_bundled):
        with pytest.raises(CardError, match=words):
            call(folder)
    assert not (folder / "README.md").exists() and not list((checkout / "bundled").iterdir())


def test_the_report_of_such_evidence_says_so(folder):
    evaluated(folder, strangers(27), n=None)
    (path,) = evidence_files(folder)
    done = CliRunner().invoke(group, ["report", str(path)])
    assert done.exit_code == 0 and "these are not the images of that name" in done.stdout


def test_other_images_than_the_recipes_are_not_published(folder, checkout):
    evaluated(folder)
    (path,) = evidence_files(folder)
    document = json.loads(path.read_text())
    document["dataset"]["id"] = "folder:mine"
    path.with_name("mine.json").write_text(json.dumps(document))
    with pytest.raises(CardError, match=r"about folder:mine test; what is published is about digits test"):
        publish.publish_bundled(folder)


@pytest.mark.parametrize("weaker", [{"protocol": "pgd-1"}, {"n": 7}, {"threat_model": "linf:1/20"}], ids=str)
def test_what_says_less_does_not_replace_what_is_published(folder, checkout, weaker):
    evaluated(folder)
    publish.publish_bundled(folder)
    before = {path: path.read_bytes() for path in checkout.parent.rglob("*") if path.is_file()}
    for path in (folder / "evidence").iterdir():
        path.unlink()
    evaluated(folder, **weaker)
    with pytest.raises(CardError, match="would replace pgd-2 at linf:1/10 on 8 images"):
        publish.publish_bundled(folder)
    assert {path: path.read_bytes() for path in checkout.parent.rglob("*") if path.is_file()} == before
    evaluated(folder, n=9)
    publish.publish_bundled(folder)


CHANGES = {
    "27 called all": lambda d: d["dataset"].update(indices=list(range(27)), subset="all"),
    "another dataset": lambda d: d["dataset"].update(id="cifar10"),
    "other weights": lambda d: d["model"].update(sha256="0" * 64),
    "counts of its own": lambda d: d["robust_accuracy"].update(n=500, correct=500, value=1.0),
    "a field less": lambda d: d.pop("dataset"),
    "a text for a number": lambda d: d.update(robust_accuracy="100 %"),
    "a list for a name": lambda d: d["protocol"].update(name=[]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_listings_show_no_numbers_of_such_evidence(folder, checkout, change):
    evaluated(folder)
    publish.publish_bundled(folder)
    (path,) = evidence_files(checkout / "bundled" / NAME)
    document = json.loads(path.read_text())
    CHANGES[change](document)
    path.write_text(json.dumps(document))
    for command in (["ls", NAME, "--json"], ["show", NAME, "--json"]):
        done = CliRunner().invoke(group, command)
        shown = json.loads(done.stdout)
        shown = shown[0] if isinstance(shown, list) else shown
        assert done.exit_code == 0 and not shown["robust"] and not shown["clean"]
        assert f"no numbers of {NAME}: " in done.stderr


def test_listings_show_the_numbers_of_good_evidence(folder, checkout):
    found = evaluated(folder)
    publish.publish_bundled(folder)
    (row,) = json.loads(CliRunner().invoke(group, ["ls", NAME, "--json"]).stdout)
    assert (row["robust"], row["protocol"], row["n"]) == (found.robust_accuracy.value, "pgd-2", 8)


def test_the_bundled_models_are_listed_with_their_numbers():
    rows = json.loads(CliRunner().invoke(group, ["ls", "--published", "--json"]).stdout)
    assert len(rows) >= 4 and all(
        row["robust"] and (row["protocol"], row["n"]) == ("aa-standard", 500) for row in rows
    )
    assert sha256_file(Path(lookup.entry(NAME).weights.folder, "model.safetensors"))
    assert Evidence.load(evidence_files(lookup.entry(NAME).weights.folder)[0])
