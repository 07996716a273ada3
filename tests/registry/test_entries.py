"""Entries and the lock: strict to read, atomic to write."""

from __future__ import annotations

import json

import pytest

from robustzoo.errors import RobustzooError
from robustzoo.registry import (
    Entry,
    IncompatibleName,
    UnknownName,
    Weights,
    all_names,
    entry,
    find_entry,
    list_models,
    published,
    recipe,
)
from robustzoo.registry.entries import LOCK_FILE, read_lock, write_lock

NAME, OTHER = "vit_micro2.digits_linf.at_trh", "vit_b16.imagenet_linf.at_base"
SHA, COMMIT = "0123456789abcdef" * 4, "0123456789" * 4
BUNDLED = {"name": NAME, "source": "bundled", "path": NAME, "sha256": SHA, "bytes": 10}
HUB = {"name": OTHER, "source": "hub", "repo": "us/zoo", "commit": COMMIT, "sha256": SHA, "bytes": 10}


def locked(folder, *rows, **document):
    path = folder / "lock.json"
    path.write_text(json.dumps({"schema": 1, "models": list(rows), **document}))
    return path


def test_names_have_entries():
    locked = read_lock()
    assert locked
    for name in {*all_names()[::5], *locked}:
        found = entry(name)
        assert (found.name, found.recipe, found.brought_by) == (name, recipe(name), None)
        assert found.weights == locked.get(name)
        if found.weights:
            assert found == find_entry(name)


def test_listing_agrees_with_the_lock():
    assert list_models() == sorted({*all_names(), *read_lock()})
    assert list_models(published_only=True) == sorted(read_lock()) == [item.name for item in published()]
    assert all(item.weights is not None for item in published())


def test_listing_by_pattern():
    names = list_models()
    assert list_models("*") == names and list_models("") == list_models("vit") == []
    digits = list_models("*.digits_linf.*")
    assert digits == [name for name in names if ".digits_linf." in name] != []
    assert list_models("vit_[bl]16.imagenet_*.at_trh") == [
        "vit_b16.imagenet_l2.at_trh",
        "vit_b16.imagenet_linf.at_trh",
        "vit_l16.imagenet_l2.at_trh",
        "vit_l16.imagenet_linf.at_trh",
    ]
    assert list_models("*.DIGITS_linf.*") == []
    assert list_models("*_trh", published_only=True) == [n for n in sorted(read_lock()) if n.endswith("_trh")]


def test_listing_is_strict_about_types():
    for wrong in (True, 3, ["*"], b"*"):
        with pytest.raises(TypeError, match="expected a shell pattern"):
            list_models(wrong)
    with pytest.raises(TypeError, match="expected True or False"):
        list_models(published_only="*")
    with pytest.raises(TypeError):
        list_models("*", True)


@pytest.mark.parametrize("item", published(), ids=lambda item: item.name)
def test_pinned_folders_are_there(item):
    if item.weights.folder is not None:
        assert (item.weights.folder / "model.safetensors").stat().st_size == item.weights.bytes


def test_no_entry_for_a_wrong_name():
    with pytest.raises(UnknownName, match=f"Did you mean {NAME}"):
        entry("vit_micro2.digits_linf.at_thr")
    with pytest.raises(IncompatibleName):
        entry("vit_micro2.imagenet_linf.at_base")
    for text in ("some/folder", "vit_micro2.imagenet_linf.at_base", "", "local-dir:x", "recipe.json"):
        assert find_entry(text) is None


def test_reading(tmp_path):
    zoo = BUNDLED | {"name": OTHER, "source": "zoo", "path": "zoo/a"}
    weights = read_lock(locked(tmp_path, BUNDLED, zoo))
    assert weights[NAME] == Weights("bundled", NAME, None, None, SHA, 10)
    assert weights[NAME].folder.parts[-3:] == ("robustzoo", "bundled", NAME)
    assert weights[OTHER].folder == LOCK_FILE.parents[2] / "zoo" / "a"
    hub = read_lock(locked(tmp_path, HUB))[OTHER]
    assert (hub.repo, hub.commit, hub.path, hub.folder) == ("us/zoo", COMMIT, None, None)
    assert read_lock(locked(tmp_path)) == {}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("x", "expected an object"),
        ({}, "source None"),
        (BUNDLED | {"source": "drive"}, "source 'drive' must be one of bundled, zoo, hub"),
        (BUNDLED | {"source": ["hub"]}, "must be one of"),
        (BUNDLED | {"sha256": SHA[:-1]}, "sha256 .* must be 64"),
        (BUNDLED | {"sha256": SHA + "0"}, "must be 64"),
        (BUNDLED | {"sha256": SHA + "\n"}, "must be 64"),
        (BUNDLED | {"sha256": SHA.upper()}, "must be 64"),
        (BUNDLED | {"sha256": 3}, "must be 64"),
        (HUB | {"commit": COMMIT[:7]}, "commit '0123456' must be 40"),
        (HUB | {"commit": "main"}, "never a branch"),
        (HUB | {"commit": "g" * 40}, "must be 40"),
        (HUB | {"repo": "zoo"}, "OWNER/NAME"),
        (HUB | {"repo": "../zoo"}, "OWNER/NAME"),
        (HUB | {"path": "x"}, "unknown key 'path' for source hub"),
        (BUNDLED | {"commit": COMMIT}, "unknown key 'commit' for source bundled"),
        (BUNDLED | {"sha526": SHA}, "unknown key 'sha526'.*Did you mean sha256"),
        ({k: v for k, v in HUB.items() if k != "commit"}, "needs commit"),
        ({k: v for k, v in BUNDLED.items() if k != "sha256"}, "needs sha256"),
        (BUNDLED | {"name": "vit_micro2.digits_linf.at_thr"}, f"Did you mean {NAME}"),
        (BUNDLED | {"name": "vit_micro2.imagenet_linf.at_base"}, "does not go with"),
        (BUNDLED | {"name": None}, "expected text"),
        (BUNDLED | {"bytes": 0}, "bytes 0"),
        (BUNDLED | {"bytes": True}, "bytes True"),
        (BUNDLED | {"bytes": "10"}, "bytes '10'"),
        (BUNDLED | {"path": "/etc"}, "must be relative"),
        (BUNDLED | {"path": "a/../../b"}, "no '..'"),
        (BUNDLED | {"path": "a\\b"}, "forward slashes"),
        (BUNDLED | {"path": "C:x"}, "must be relative"),
        (BUNDLED | {"path": "."}, "must be relative"),
        (BUNDLED | {"path": ""}, "must be relative"),
    ],
)
def test_bad_rows_are_refused(tmp_path, row, problem):
    path = locked(tmp_path, row)
    with pytest.raises(RobustzooError, match=problem):
        read_lock(path)


def test_bad_files_are_refused(tmp_path):
    with pytest.raises(RobustzooError, match="there twice"):
        read_lock(locked(tmp_path, BUNDLED, BUNDLED))
    for document in ({"schema": 2}, {"models": {}}, {"more": 1}):
        with pytest.raises(RobustzooError, match=r"expected.*restore it|must be a list; restore it"):
            read_lock(locked(tmp_path, **document))
    for text in ("", "{", "[]", "null"):
        (tmp_path / "lock.json").write_text(text)
        with pytest.raises(RobustzooError, match="restore it"):
            read_lock(tmp_path / "lock.json")
    with pytest.raises(RobustzooError, match="cannot read"):
        read_lock(tmp_path / "none.json")


def test_writing_round_trips_sorted(tmp_path):
    path = tmp_path / "lock.json"
    rows = [
        Entry(NAME, recipe(NAME), Weights("bundled", NAME, None, None, SHA, 10)),
        Entry(OTHER, recipe(OTHER), Weights("hub", None, "us/zoo", COMMIT, SHA, 10)),
    ]
    write_lock(rows, path)
    assert read_lock(path) == {item.name: item.weights for item in rows}
    assert json.loads(path.read_text())["models"] == [HUB, BUNDLED]
    text = path.read_text()
    write_lock(reversed(rows), path)
    assert path.read_text() == text
    assert [file.name for file in tmp_path.iterdir()] == ["lock.json"]


def test_the_package_lock_is_as_written(tmp_path):
    write_lock(published(), tmp_path / "lock.json")
    assert (tmp_path / "lock.json").read_text() == LOCK_FILE.read_text()


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        (None, "no weights to lock; give them with `robustzoo publish FOLDER`"),
        (Weights("bundled", NAME, None, None, "short", 10), "must be 64"),
        (Weights("bundled", NAME, None, COMMIT, SHA, 10), "unknown key 'commit'"),
        (Weights("hub", None, "us/zoo", None, SHA, 10), "needs commit"),
    ],
)
def test_nothing_is_written_when_an_entry_is_bad(tmp_path, weights, problem):
    path = locked(tmp_path, BUNDLED)
    before = path.read_text()
    with pytest.raises(RobustzooError, match=problem):
        write_lock([Entry(NAME, recipe(NAME), weights)], path)
    good = Entry(NAME, recipe(NAME), Weights("bundled", NAME, None, None, SHA, 10))
    with pytest.raises(RobustzooError, match="given twice"):
        write_lock([good, good], path)
    assert path.read_text() == before
    assert [file.name for file in tmp_path.iterdir()] == ["lock.json"]
