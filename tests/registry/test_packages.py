"""Entries of other packages: found, read as data, and when broken named and left out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import robustzoo
from robustzoo.registry import UnknownName, all_names, entry, find_entry, list_models, published, recipe
from robustzoo.registry.entries import read_lock
from robustzoo.registry.packages import brought, is_brought, problems

BASE = "vit_micro2.digits_linf.at_trh"
CHANGED = {"base_name": BASE, "trh_lambda": 0.5, "sources": {"trh_lambda": "acme's own"}}
SHA, COMMIT = "0123456789abcdef" * 4, "0123456789" * 4
HUB = {"source": "hub", "repo": "acme/zoo", "commit": COMMIT, "sha256": SHA, "bytes": 10}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Put a distribution on sys.path: its entry points, and a package with zoo.json and more files."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(models, *, name="acme", package="acme_zoo", points=None, text=None, files=None, code=""):
        info = tmp_path / f"{package}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text(points or f"[robustzoo.zoo]\n{name} = {package}\n")
        folder = tmp_path / package
        folder.mkdir()
        (folder / "__init__.py").write_text(code)
        document = {"schema": "robustzoo.zoo/1", "models": models}
        (folder / "zoo.json").write_text(json.dumps(document) if text is None else text)
        for path, content in (files or {}).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(content if isinstance(content, str) else json.dumps(content))
        monkeypatch.syspath_prepend(str(tmp_path / f"again{len(list(tmp_path.iterdir()))}"))  # a new search
        return folder

    return install


def test_nothing_is_brought_where_no_package_does():
    assert brought() == {} and problems() == ()


def test_recipes_and_names(install):
    install(
        [{"name": "strong", "recipe": "recipes/strong.json"}, {"name": "same", "recipe": BASE}],
        files={"recipes/strong.json": CHANGED},
        code="raise RuntimeError('no code of the package may run')",
    )
    assert problems() == ()
    assert list_models("acme:*") == ["acme:same", "acme:strong"]
    assert list_models() == sorted([*all_names(), "acme:same", "acme:strong"])
    strong = entry("acme:strong")
    assert strong == find_entry("acme:strong") and strong.weights is None
    assert strong.brought_by == "acme (acme_zoo 1.2)"
    assert strong.recipe == recipe("acme:strong") == recipe(BASE, {"trh_lambda": 0.5})
    assert strong.recipe.name.startswith(f"{BASE}+") and strong.recipe.sources["trh_lambda"] == "acme's own"
    assert recipe("acme:strong").sources == strong.recipe.sources
    assert entry("acme:same").recipe == recipe(BASE)
    again = recipe("acme:strong", {"total_steps": 700})
    assert again == recipe(BASE, {"trh_lambda": 0.5, "total_steps": 700})
    assert [item.name for item in published()] == sorted(read_lock())


def test_weights_in_the_package_and_on_the_hub(install):
    bundled = entry(BASE).weights
    here = {"source": "package", "path": "models/mine", "sha256": bundled.sha256, "bytes": bundled.bytes}
    folder = install(
        [
            {"name": "mine", "recipe": BASE, "weights": here},
            {"name": "hub", "recipe": BASE, "weights": HUB},
        ]
    )
    shutil.copytree(bundled.folder, folder / "models" / "mine")
    assert entry("acme:mine").weights.folder == folder / "models" / "mine"
    assert (entry("acme:hub").weights.commit, entry("acme:hub").weights.folder) == (COMMIT, None)
    assert list_models("acme:*", published_only=True) == ["acme:hub", "acme:mine"]
    model = robustzoo.load("acme:mine")
    assert model.recipe == recipe(BASE) and model.folder == folder / "models" / "mine"
    weights = folder / "models" / "mine" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    with pytest.raises(ValueError, match=r"acme \(acme_zoo 1.2\)"):
        robustzoo.load("acme:mine")


@pytest.mark.parametrize(
    ("recipe_place", "more_bytes", "remove", "problem"),
    [
        ("x.json", 0, None, f"but holds {BASE}"),
        (BASE, 5, None, "bytes but has"),
        (BASE, 0, "model.safetensors", "model.safetensors cannot be read (No such file"),
        (BASE, 0, "config.json", "config.json cannot be read (No such file"),
    ],
)
def test_a_folder_that_is_not_the_pinned_one_is_left_out(
    install, tmp_path, recipe_place, more_bytes, remove, problem
):
    bundled = entry(BASE).weights
    here = {
        "source": "package",
        "path": "m",
        "sha256": bundled.sha256,
        "bytes": bundled.bytes + more_bytes,
    }
    folder = install([{"name": "x", "recipe": recipe_place, "weights": here}], files={"x.json": CHANGED})
    shutil.copytree(bundled.folder, folder / "m")
    if remove is not None:
        (folder / "m" / remove).unlink()
    listed = command("ls", path=tmp_path)
    assert "acme:x" not in listed.stdout and listed.returncode == 0
    assert "left out, from another package: acme (acme_zoo 1.2): acme:x" in listed.stderr
    assert problem in listed.stderr and listed.stderr.endswith("False\n"), "no torch"
    for use in (robustzoo.load, robustzoo.verify, entry):
        with pytest.raises(UnknownName, match=re.escape(problem)):
            use("acme:x")


GOOD = {"name": "good", "recipe": BASE}
WEIGHTS = {"source": "package", "path": "m", "sha256": SHA, "bytes": 1}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("x", "expected an object"),
        ({"name": "x"}, "recipe None"),
        ({"name": "a b", "recipe": BASE}, "name 'a b' is not allowed"),
        ({"name": "../x", "recipe": BASE}, "is not allowed"),
        ({"name": 3, "recipe": BASE}, "name 3"),
        ({"name": "x", "recipe": BASE, "wieghts": {}}, "unknown key 'wieghts'"),
        ({"name": "x", "recipe": "vit_micro2.digits_linf.at_thr"}, "Did you mean"),
        ({"name": "x", "recipe": "vit_l16.digits_linf.at_trh"}, "does not go with"),
        ({"name": "x", "recipe": "acme:good"}, "recipe 'acme:good'"),
        ({"name": "x", "recipe": "none.json"}, "no recipe file"),
        ({"name": "x", "recipe": "../outside.json"}, "leaves the package"),
        ({"name": "x", "recipe": "/etc/outside.json"}, "leaves the package"),
        ({"name": "x", "recipe": "bad.json"}, "trh_lambda: -1 is not allowed"),
        ({"name": "x", "recipe": "torn.json"}, "cannot read the recipe file"),
        ({"name": "x", "recipe": BASE, "weights": []}, "expected an object"),
        ({"name": "x", "recipe": BASE, "weights": WEIGHTS | {"source": "bundled"}}, "package, hub"),
        ({"name": "x", "recipe": BASE, "weights": WEIGHTS | {"path": "../m"}}, "no '..'"),
        ({"name": "x", "recipe": BASE, "weights": WEIGHTS | {"sha256": "0"}}, "64 lower-case hex"),
        ({"name": "x", "recipe": BASE, "weights": HUB | {"commit": "main"}}, "never a branch"),
        (GOOD, "acme:good is there twice"),
    ],
)
def test_a_broken_model_is_named_and_left_out(install, row, problem):
    install([GOOD, row], files={"bad.json": {"base_name": BASE, "trh_lambda": -1}, "torn.json": "{"})
    assert list(brought()) == ["acme:good"]
    (text,) = problems()
    assert text.startswith("acme (acme_zoo 1.2): ") and problem in text
    if isinstance(row, dict) and row.get("name") == "x":
        with pytest.raises(UnknownName, match="Left out: acme"):
            entry("acme:x")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"text": "{"}, "zoo.json"),
        ({"text": "[]"}, 'expected {"schema"'),
        ({"text": '{"schema": "robustzoo.zoo/9", "models": []}'}, "another version"),
        ({"points": "[robustzoo.zoo]\nacme = acme_zoo:models\n"}, "no installed package"),
        ({"points": "[robustzoo.zoo]\nacme = not_there\n"}, "no installed package"),
        ({"points": "[robustzoo.zoo]\nacme = acme_zoo.more\n"}, "no file zoo.json"),
        ({"points": "[robustzoo.zoo]\nAcme Zoo = acme_zoo\n"}, "cannot be a prefix"),
        *(
            ({"points": f"[robustzoo.zoo]\n{prefix} = acme_zoo\n"}, "cannot be a prefix")
            for prefix in (
                *(
                    "hf-hub",
                    "local-dir",
                    "timm",
                    "robustzoo",
                    "robust-zoo",
                    "vit_micro2",
                    "vit-micro2",
                    "digits",
                ),
                *("cifar10", "imagenet", "trades", "trh", "c", "file", "https", "a" * 65),
            )
        ),
        ({"points": "[robustzoo.zoo]\nnonsense\n"}, "entry points of"),
    ],
)
def test_a_broken_package_is_named_and_the_zoo_stays(install, given, problem):
    install([GOOD], **given)
    assert brought() == {} and list_models() == all_names()
    (text,) = problems()
    assert problem in text and "acme" in text.lower()
    assert recipe(BASE).name == BASE


def test_two_packages_with_one_prefix(install):
    install([GOOD])
    install([GOOD], package="other_zoo", name="acme")
    assert list(brought()) == ["acme:good"]
    assert "already brings names" in problems()[0] and "other_zoo" in problems()[0]


@pytest.mark.parametrize(
    "text", ["", ":", "acme:", ":x", "Acme:x", "acme:x y", "hf-hub:a", "local-dir:x", "acme", None, 3]
)
def test_what_is_no_brought_name(text):
    assert not is_brought(text)
    assert find_entry(text) is None


def test_an_unknown_brought_name_suggests(install):
    install([GOOD])
    with pytest.raises(UnknownName, match="Did you mean acme:good"):
        entry("acme:godo")
    with pytest.raises(UnknownName, match="Packages bring: acme:good"):
        recipe("zzz:qqqqqqqqqq")


def command(*arguments: str, path: Path):
    code = "import sys; from robustzoo.cli import main; sys.argv[0] = 'robustzoo'; main()"
    paths = [str(path), str(Path(robustzoo.__file__).parents[1])]
    before = f"import sys; sys.path[:0] = {paths!r}; "
    after = "print('torch' in sys.modules, file=sys.stderr)"
    return subprocess.run(
        [sys.executable, "-c", f"{before}\ntry:\n    {code}\nfinally:\n    {after}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_on_the_command_line(install, tmp_path):
    install(
        [{"name": "strong", "recipe": "s.json"}, {"name": "broken", "recipe": "none.json"}],
        files={"s.json": CHANGED},
    )
    made = recipe(BASE, {"trh_lambda": 0.5})
    listed = command("ls", "acme:*", path=tmp_path)
    assert listed.returncode == 0
    assert "acme:strong" in listed.stdout and made.name in listed.stdout
    assert "left out, from another package: acme (acme_zoo 1.2): acme:broken" in listed.stderr
    assert listed.stderr.endswith("False\n"), "no torch"
    (record,) = json.loads(command("ls", "acme:*", "--json", path=tmp_path).stdout)
    assert (record["name"], record["recipe"]) == ("acme:strong", made.name)
    shown = command("show", "acme:strong", path=tmp_path).stdout
    assert f"deepspeed training/train.py acme:strong --out runs/{made.name}" in shown
    assert "trh_lambda=0.5 (was 0.01)" in shown and "acme (acme_zoo 1.2)" in shown and made.name in shown
    printed = command("recipe", "acme:strong", path=tmp_path).stdout
    assert printed.startswith(made.name) and "acme's own" in printed
    assert f"changed from {BASE}: trh_lambda=0.5 (was 0.01)" in printed
