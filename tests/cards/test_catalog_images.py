"""Evidence with a catalog dataset's name must be about its images, and "all" are all of them."""

from __future__ import annotations

import copy

import pytest

from robustzoo.cards.evidence_rules import images_problem
from robustzoo.cards.holdings import covers
from robustzoo.data import load_dataset, pixel_digest
from robustzoo.registry.catalog import DATASETS


def dataset(key="digits", n=500, subset="all", **changes):
    spec = DATASETS[key]
    found = {
        "id": key,
        "split": "test",
        "subset": subset,
        "num_classes": spec.num_classes,
        "image_shape": [spec.channels, spec.image_size, spec.image_size],
        "indices": list(range(n)),
        "digest": spec.test_digest or "a" * 64,
    }
    return {"dataset": {**found, **changes}}


GOOD = {
    "all": dataset(),
    "drawn": dataset(n=27, subset="n27-seed0", digest="a" * 64),
    "chosen": dataset(n=27, subset="chosen27", digest="a" * 64),
    "part": dataset("cifar10", n=6, subset="part6"),
    "drawn of a part": dataset("cifar10", n=3, subset="n3-seed0-of-part6"),
    "unknown digest": dataset("cifar10", n=10_000),
    "a folder": dataset(n=27, id="folder:digits"),
    "training images": dataset(n=1147, split="train"),
}
BAD = {
    "27 images called all": (dataset(n=27), "27 images are called all of digits test, which has 500"),
    "6 of CIFAR called all": (dataset("cifar10", n=6), "6 images are called all of cifar10 test"),
    "500 other images": (dataset(digest="a" * 64), "other images"),
    "all CIFAR, other pixels": (dataset("cifar10jpg", n=10_000, digest="a" * 64), "other images"),
    "more images": (dataset(n=501, subset="x"), "has 500 images"),
    "beyond the last": (dataset(indices=[500], subset="n1-seed0"), "has an image 500"),
    "classes": (dataset(num_classes=11), "11 classes"),
    "channels": (dataset(image_shape=[3, 8, 8]), "3 channels"),
    "another number": (dataset(n=27, subset="n200-seed0"), "27 images are called n200-seed0"),
    "another part": (dataset("cifar10", n=6, subset="part9"), "6 images are called part9"),
    "training images beyond": (dataset(n=1298, split="train"), "has an image 1297"),
}


@pytest.mark.parametrize("name", GOOD)
def test_images_of_the_catalog(name):
    assert images_problem(GOOD[name]) is None


@pytest.mark.parametrize("name", BAD)
def test_images_that_are_not_what_their_name_says(name):
    doc, words = BAD[name]
    assert words in (images_problem(doc) or "")


def test_the_digest_of_digits_is_that_of_its_images():
    found = load_dataset("digits")
    assert DATASETS["digits"].test_digest == pixel_digest(found, range(len(found)))


@pytest.mark.slow
def test_the_digest_of_the_jpeg_copy_of_cifar_is_that_of_its_images(shared):
    found = load_dataset("cifar10jpg", shared / "data" / "cifar10jpg")
    assert found.complete
    assert DATASETS["cifar10jpg"].test_digest == pixel_digest(found, range(len(found)))


@pytest.mark.parametrize(
    ("place", "value", "expected"),
    [
        ((), None, True),
        (("protocol", "name"), "aa-standard", True),
        (("protocol", "members"), [], False),
        (("protocol", "members", 0, "iterations"), 99, False),
        (("protocol", "members", 0, "iterations"), 101, True),
        (("protocol", "members", 1, "targets"), 8, False),
        (("protocol", "members", 0, "attack"), "square", False),
        (("dataset", "indices"), [0, 3, 6], False),
        (("dataset", "indices"), list(range(100)), True),
        (("dataset", "id"), "folder:digits", False),
        (("dataset", "split"), "train", False),
        (("threat_model", "epsilon"), "1/20", False),
    ],
    ids=str,
)
def test_what_says_as_much_of_a_model(evidence, place, value, expected):
    new = copy.deepcopy(evidence)
    at = new.doc
    for part in place[:-1]:
        at = at[part]
    if place:
        at[place[-1]] = value
    assert covers(new, evidence) is expected


def test_a_longer_pgd_says_as_much_as_a_shorter_one(evidence):
    longer, shorter = copy.deepcopy(evidence), copy.deepcopy(evidence)
    for document, steps in ((longer, 20), (shorter, 10)):
        document.doc["protocol"]["name"] = f"pgd-{steps}"
        (member, *_) = document.doc["protocol"]["members"]
        document.doc["protocol"]["members"] = [{**member, "attack": f"pgd-{steps}", "iterations": steps}]
    assert covers(longer, shorter) and not covers(shorter, longer)
