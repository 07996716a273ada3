"""load(name): what each kind of name gives, and what a name without weights says."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from hub_cache import NAME

import robustzoo
from robustzoo.cli import group
from robustzoo.errors import RobustzooError
from robustzoo.hub.load import resolve_folder
from robustzoo.models import read_folder
from robustzoo.registry import (
    IncompatibleName,
    ThreatModel,
    UnknownName,
    all_names,
    entries,
    published,
    recipe,
)
from robustzoo.registry.digests import sha256_file

PIXELS = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(2))
SMALL = [name for name in all_names() if name.startswith(("vit_micro2", "vit_ti4"))][::9]


def check(model, expected):
    assert not model.training
    assert torch.equal(model(PIXELS), expected(PIXELS))
    assert (model.name, model.recipe, model.card) == (NAME, recipe(NAME), "# a card\n")
    assert model.threat_model == ThreatModel.parse("linf:1/10")


@pytest.mark.parametrize("form", ["local-dir:{}", "{}", Path])
def test_local_folders(published, form):
    name = form(published) if form is Path else form.format(published)
    model = robustzoo.load(name)
    check(model, read_folder(published))
    assert model.folder == published


def test_local_folders_relative_to_here(published, monkeypatch):
    monkeypatch.chdir(published.parent)
    check(robustzoo.load("local-dir:model"), read_folder(published))
    check(robustzoo.load("model"), read_folder(published))
    check(robustzoo.load("./model"), read_folder(published))


@pytest.mark.parametrize(("source", "root"), [("bundled", "robustzoo/bundled"), ("zoo", "")])
def test_bundled_and_zoo_folders(lock, published, tmp_path, monkeypatch, no_request, source, root):
    monkeypatch.setattr(entries, "_PACKAGE", tmp_path / "checkout" / "robustzoo")
    folder = tmp_path / "checkout" / root / "some" / NAME
    shutil.copytree(published, folder)
    digest = sha256_file(published / "model.safetensors")
    size = (published / "model.safetensors").stat().st_size
    lock(source=source, path=f"some/{NAME}", repo=None, commit=None, sha256=digest, bytes=size)
    check(robustzoo.load(NAME), read_folder(published))
    assert resolve_folder(NAME) == folder
    lock(source=source, path=f"some/{NAME}", repo=None, commit=None, sha256="0" * 64, bytes=1)
    with pytest.raises(RobustzooError, match=digest) as caught:
        robustzoo.load(NAME)
    advice = "reinstall the package" if source == "bundled" else "git checkout"
    assert advice in str(caught.value) and "0" * 64 in str(caught.value)
    shutil.rmtree(folder)
    with pytest.raises(RobustzooError, match=advice):
        robustzoo.load(NAME)
    assert not no_request


def test_a_pin_of_another_size_or_another_model_is_refused_whatever_asks(
    lock, published, tmp_path, monkeypatch
):
    """Not by `load` alone: the numbers of the wrong model must not be shown under the name either."""
    monkeypatch.setattr(entries, "_PACKAGE", tmp_path / "robustzoo")
    folder = tmp_path / "robustzoo" / "bundled" / NAME
    shutil.copytree(published, folder)
    weights = folder / "model.safetensors"
    size = weights.stat().st_size
    pin = {"source": "bundled", "path": NAME, "repo": None, "commit": None, "sha256": sha256_file(weights)}

    def refused(message):
        for use in (robustzoo.load, resolve_folder, robustzoo.verify):
            with pytest.raises(RobustzooError, match=message):
                use(NAME)
        for command in (["report", NAME], ["compare", NAME, NAME], ["verify", NAME]):
            found = CliRunner().invoke(group, command)
            said = found.output if found.exit_code == 2 else str(found.exception)
            assert found.exit_code != 0 and re.search(message, said), command
        for command in (["ls", NAME, "--json"], ["show", NAME, "--json"]):
            found = CliRunner().invoke(group, command)
            assert found.exit_code == 0 and '"clean": null' in found.stdout
            assert re.search(f"no numbers of {NAME}: .*{message.partition(';')[0]}", found.output)

    lock(**pin, bytes=size + 7)
    refused(f"pinned with {size + 7} bytes but has {size}; reinstall the package robustzoo")
    lock(**pin, bytes=size)
    assert resolve_folder(NAME) == folder
    bundled = Path(robustzoo.__file__).parent / "bundled" / NAME / "evidence"
    shutil.copytree(bundled, folder / "evidence", dirs_exist_ok=True)
    (folder / "evidence" / "aa-standard.test500.json").unlink()  # the fixture's, without content
    (stated,) = (folder / "evidence").glob("*.json")
    about = json.loads(stated.read_text())["model"]["sha256"]
    stated.write_text(stated.read_text().replace(about, pin["sha256"]))
    assert '"clean": 0.' in CliRunner().invoke(group, ["ls", NAME, "--json"]).stdout
    other = "vit_micro2.digits_linf.at_base"
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(text.replace(f'"name": "{NAME}"', f'"name": "{other}"'))
    refused(f"is pinned as {NAME} but holds {other}")
    for broken in ("{", "[]", '{"robustzoo": 3}', "[" * 100_000):
        (folder / "config.json").write_text(broken)
        refused("config.json is no configuration of a robustzoo model")
    (folder / "config.json").unlink()
    refused(r"config.json cannot be read \(No such file")


def test_a_registry_name_wins_over_a_folder_of_that_name(lock, published, tmp_path, monkeypatch):
    """What a name means must not depend on where one stands."""
    entries.write_lock([])
    shutil.copytree(published, tmp_path / NAME)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RobustzooError):
        robustzoo.load(NAME)
    check(robustzoo.load(f"local-dir:{NAME}"), read_folder(published))


def test_every_published_model_loads():
    """Whatever the lock pins inside the package; Hub folders are not fetched here."""
    for item in published():
        if item.weights.source == "bundled":
            model = robustzoo.load(item.name)
            assert (model.name, model.threat_model) == (item.name, item.recipe.threat_model)
            assert model.recipe.digest == item.recipe.digest


# --- no weights ---


@pytest.mark.parametrize("name", [name for name in all_names() if name.startswith("vit_l16")][::29])
def test_an_unpublished_name_gives_the_training_command(lock, name):
    entries.write_lock([])
    with pytest.raises(RobustzooError) as caught:
        robustzoo.load(name)
    assert f"deepspeed training/train.py {name} --data DIR --out runs/{name}" in str(caught.value)
    assert "pretrained=False" in str(caught.value)


def test_the_training_command_of_digits_asks_for_no_files(lock):
    entries.write_lock([])
    with pytest.raises(RobustzooError) as caught:
        robustzoo.load(NAME)
    assert f"deepspeed training/train.py {NAME} --out runs/{NAME}\n" in str(caught.value)


@pytest.mark.parametrize("name", SMALL)
def test_any_compatible_name_can_be_built(name):
    model = robustzoo.load(name, pretrained=False)
    wanted = recipe(name)
    x = torch.rand(2, wanted.channels, wanted.image_size, wanted.image_size)
    assert model(x).shape == (2, wanted.num_classes) and not model.training
    assert (model.name, model.recipe, model.threat_model) == (name, wanted, wanted.threat_model)
    assert model.card is None and model.folder is None


def test_the_large_model_can_be_built():
    with torch.device("meta"):
        model = robustzoo.load("vit_l16.imagenet_linf.at_trh", pretrained=False)
    assert sum(p.numel() for p in model.parameters()) == 304_326_632


def test_a_folder_can_be_built_without_its_weights(published):
    model = robustzoo.load(published, pretrained=False)
    assert model.recipe == recipe(NAME) and model.folder is None
    assert not torch.equal(model(PIXELS), read_folder(published)(PIXELS))


# --- no such thing ---


NO_SUCH = [
    ("vit_micro2.digits_linf.at_thr", UnknownName, r"vit_micro2\.digits_linf\.at_trh"),
    *((name, UnknownName, "") for name in ("", " ", 5, None, "vit_micro2", "a\x00b")),
    ("a" * 10_000, UnknownName, r"aaa\.\.\.' \(10000 characters\) is neither"),
    ("vit_micro2.imagenet_linf.at_base", IncompatibleName, "does not go with"),
    *((name, RobustzooError, "is not a folder") for name in ("local-dir:/nowhere", "runs/no", Path("no"))),
    (Path(__file__).parent, RobustzooError, "config.json does not exist"),
]


@pytest.mark.parametrize(("name", "error", "words"), NO_SUCH, ids=lambda value: str(value)[:30])
def test_what_cannot_be_loaded(name, error, words):
    with pytest.raises(error, match=words) as caught:
        robustzoo.load(name)
    assert len(str(caught.value)) < 500


def test_names_resolve_without_torch_or_the_evaluator():
    code = (
        "import robustzoo.hub.load, sys; sys.exit(bool({'torch', 'robustzoo.evaluation'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(robustzoo.__file__).parents[1], check=True)


def test_a_pretrained_that_is_no_bool():
    with pytest.raises(TypeError, match="pretrained 'no' is no bool"):
        robustzoo.load(NAME, pretrained="no")
