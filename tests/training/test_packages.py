"""Losses, defences and optimizers of installed packages: the example's, and one that tells when it is run."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.metadata import entry_points

import pytest
import torch
from click.testing import CliRunner

from robustzoo.cli import group
from robustzoo.errors import RobustzooError
from robustzoo.models import read_folder
from robustzoo.models.pixel_model import pixel_model
from robustzoo.objectives.extension import Defence
from robustzoo.objectives.objective import Objective
from robustzoo.registry import recipe
from robustzoo.registry.digests import sha256_file
from robustzoo.training import zero
from tests.training.small import ROOT, small

AT = "vit_micro2.digits_linf.at_base"
MARGIN, CALM, SIGNED = (f"robustzoo-example:{name}" for name in ("margin", "calm", "signed"))
ARGUMENTS = {MARGIN: {"gap": 2.0}, CALM: {"weight": 0.1}}
CHANGES = {"loss": MARGIN, "defences": [CALM], "package_args": ARGUMENTS}
MODEL = "model/model.safetensors"
SPY = """
from pathlib import Path
Path({mark!r}).touch()
from robustzoo.objectives.extension import Defence
calm = lambda recipe: Defence()
"""


def install(site, name: str, points: dict[str, dict[str, str]]) -> None:
    """What an installer leaves of a package beside its code: metadata and entry points."""
    info = site / f"{name.replace('-', '_')}-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    lines = [
        f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in own.items()) for group, own in points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The example package, installed."""
    tomllib = pytest.importorskip("tomllib")
    source, site = ROOT / "examples/robustzoo_example", tmp_path / "site"
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    install(site, project["name"], project["entry-points"])
    shutil.copytree(source / "robustzoo_example", site / "robustzoo_example")
    monkeypatch.syspath_prepend(str(site))
    yield site
    for name in [name for name in sys.modules if name.startswith("robustzoo_example")]:
        del sys.modules[name]


@pytest.fixture
def spy(tmp_path):
    """(folder of a package whose module leaves a mark when it is imported, that mark)."""
    site, mark = tmp_path / "spies", tmp_path / "was_here"
    install(site, "spy", {f"robustzoo.{kind}": {"calm": "spy:calm"} for kind in ("losses", "defences")})
    (site / "spy.py").write_text(SPY.format(mark=str(mark)))
    return site, mark


def test_the_example_is_trained_resumed_and_loaded_without_it(train, tmp_path, example, monkeypatch):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"base_name": AT, **CHANGES, "optimizer": SIGNED}))
    run = [str(file), *small(), "--set", "base_lr=0.0001"]
    assert train([*run, "--out", str(tmp_path / "whole"), "--micro-batch", "4"]) == 0
    assert train([*run, "--out", str(tmp_path / "cut"), "--micro-batch", "4", "--max-steps", "2"]) == 0
    assert train([*run, "--out", str(tmp_path / "cut"), "--micro-batch", "4", "--resume"]) == 0
    assert sha256_file(tmp_path / "cut" / MODEL) == sha256_file(tmp_path / "whole" / MODEL)
    logged = json.loads((tmp_path / "whole/metrics.jsonl").read_text().splitlines()[0])
    assert {"shortfall", "calm", "robust"} <= logged.keys()
    assert logged["total"] == pytest.approx(logged["robust"] + logged["calm"], rel=1e-5)
    versions = json.loads((tmp_path / "whole/config.json").read_text())["versions"]
    assert versions["robustzoo-example"] == "0.1"
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(example)])
    assert read_folder(tmp_path / "cut/model").recipe.loss == MARGIN


def test_terms_and_moves_of_the_example(example):
    made = recipe(AT, CHANGES)
    objective, model = Objective(made), pixel_model(made)
    x, y = torch.rand(4, 1, 8, 8), torch.arange(4)
    images = objective.inputs(x, (x + 0.05).clamp(0, 1))
    features = model.features(images)
    terms = objective.terms(features, model.head(features), y, step=0)
    clean, adversarial = features.chunk(2)
    assert len(images) == 8 and not objective.moves_weights
    assert torch.allclose(terms["calm"], 0.1 * (adversarial - clean).square().mean())
    logits = model.head(adversarial)
    worst = (logits - 1e9 * torch.eye(10)[:4]).amax(1) - logits[range(4), range(4)]
    assert torch.allclose(terms["shortfall"], (2 + worst).relu().mean())
    assert torch.allclose(terms["total"], terms["robust"] + terms["calm"])


def test_an_optimizer_of_the_example(example):
    made = recipe(AT, {"optimizer": SIGNED, "base_lr": 0.5})
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    weight.grad = torch.tensor([0.3, -0.1])
    zero.optimizer(made, [weight], weight_decay=0.0).step()
    assert weight.tolist() == [0.5, -1.5]


COMMANDS = (
    ("ls",),
    ("show", AT),
    ("recipe", AT, "--set", "defences=spy:calm"),
    ("evaluate", AT, "--protocol", "pgd-2", "--n", "2"),
)


def test_code_of_a_package_runs_only_where_a_recipe_names_it(train, tmp_path, spy, monkeypatch):
    site, mark = spy
    monkeypatch.syspath_prepend(str(site))
    assert [point.name for point in entry_points(group="robustzoo.defences") if point.value == "spy:calm"]
    for command in COMMANDS:
        assert CliRunner().invoke(group, command, catch_exceptions=False).exit_code == 0, command
    assert train([AT, *small(2), "--out", str(tmp_path / "other")]) == 0
    recipe(AT, {"defences": "spy:calm"})
    assert not mark.exists()
    assert train([AT, *small(2), "--set", "defences=spy:calm", "--out", str(tmp_path / "named")]) == 0
    assert mark.exists()
    sys.modules.pop("spy")


REFUSED = [
    ({"loss": "trades"}, "fixes"),
    ({"defences": ["awp"]}, "fixes"),
    ({"loss": "Robustzoo:x y"}, "PACKAGE:NAME"),
    ({"package_args": {"other:x": {}}}, "names none"),
    ({"loss": MARGIN, "package_args": {MARGIN: 3}}, "keyword arguments"),
    ({"defences": [CALM, CALM]}, "repeats"),
]


@pytest.mark.parametrize(("changes", "keyword"), REFUSED)
def test_recipes_that_are_refused(changes, keyword):
    with pytest.raises(RobustzooError, match=keyword):
        recipe(AT, changes)


def test_packages_that_do_not_bring_what_is_named(example):
    for changes, keyword in (
        ({"loss": "no-such-package:x"}, "not installed"),
        ({"loss": "robustzoo-example:nothing"}, "has margin"),
        ({"loss": MARGIN, "package_args": {MARGIN: {"gaps": 1}}}, "package_args"),
    ):
        with pytest.raises(RobustzooError, match=keyword):
            Objective(recipe(AT, changes))
    with pytest.raises(RobustzooError, match="at, trades"):
        recipe("vit_micro2.digits_linf.at_trh", {"loss": MARGIN})


def test_moves_of_a_defence_are_made_and_undone(monkeypatch):
    def half(weights, gradients):
        return [0.5 * gradient for gradient in gradients]

    monkeypatch.setattr(
        "robustzoo.objectives.objective.brought_defences", lambda recipe: [Defence(moves=half)]
    )
    objective, model = Objective(made := recipe(AT)), pixel_model(recipe(AT))
    assert made and objective.moves_weights and objective.ascends(0)
    x, y = torch.rand(4, 1, 8, 8), torch.arange(4)
    parameters, gradients = objective.ascent(model, x, x, y, 0)
    assert len(parameters) == len(list(model.parameters()))
    for move, gradient in zip(objective.moves(parameters, gradients), gradients, strict=True):
        assert torch.equal(move, 0.5 * gradient)
