"""Cross-checks: agreement per attack with other packages, and what is said where they cannot run."""

from __future__ import annotations

import importlib
import json
import sys
import types

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from robustzoo.cli import group
from robustzoo.data import load_dataset
from robustzoo.diagnostics.crosscheck import crosscheck
from robustzoo.diagnostics.engines import open_engine
from robustzoo.errors import RobustzooError
from robustzoo.registry import ThreatModel

LINF = ThreatModel.parse("linf:1/40")


def run(model, engine="autoattack", threat_model="linf:1/40", **options):
    return crosscheck(model, "digits", threat_model, engine=engine, progress=False, **{"n": 30, **options})


@pytest.mark.parametrize("engine", ["autoattack", "torchattacks"])
@pytest.mark.parametrize("threat_model", ["linf:1/40", "l2:1/4"])
def test_engines_agree_on_a_linear_model(linear, engine, threat_model):
    pytest.importorskip({"autoattack": "pyautoattack"}.get(engine, engine))
    found = run(linear, engine, threat_model, attacks=["apgd-ce", "apgd-t"])
    assert [row.attack for row in found.rows] == ["apgd-ce", "apgd-t"]
    assert 0 < len(found.worst_case.theirs) < found.correct < found.n
    assert all(row.only_ours + row.only_theirs <= 1 for row in found.rows)
    assert engine in found.engine and "no AutoAttack number of robustzoo" in found.text()
    assert found.to_json()["attacks"][-1]["attack"] == "worst case"


class Fake(types.ModuleType):
    """A package whose attack returns what `points` makes of the images."""

    def __init__(self, name, points):
        super().__init__(name)
        package = self

        class APGD:
            def __init__(self, model, **parameters):
                package.parameters = parameters

            def __call__(self, x, y):
                return points(x)

        self.APGD = APGD


def test_what_an_engine_returns_is_judged_here(linear, monkeypatch):
    """Points outside the ball do not count, whatever the package says of them."""
    fake = Fake("torchattacks", lambda x: 1 - x)
    monkeypatch.setitem(sys.modules, "torchattacks", fake)
    found = run(linear, "torchattacks", attacks=["apgd-ce"])
    assert found.rows[0].theirs == [] and found.rows[0].ours
    assert found.rows[0].only_ours == len(found.rows[0].ours)
    assert fake.parameters["steps"] == 100 and fake.parameters["n_restarts"] == 1
    assert fake.parameters["eps"] == LINF.eps and fake.parameters["loss"] == "ce"


def test_failures_of_a_package_are_said_in_words(linear, monkeypatch):
    def fail(x):
        raise IndexError("too few classes")

    monkeypatch.setitem(sys.modules, "torchattacks", Fake("torchattacks", fail))
    with pytest.raises(RobustzooError, match=r"failed in apgd-ce: IndexError: too few classes.*--attacks"):
        run(linear, "torchattacks", attacks=["apgd-ce"])


def test_a_missing_package_gives_the_install_line(linear, monkeypatch):
    for module in ("torchattacks", "pyautoattack", "autoattack"):
        monkeypatch.setitem(sys.modules, module, None)
    for engine in ("torchattacks", "autoattack"):
        with pytest.raises(RobustzooError, match=r"not installed.*pip install 'robustzoo\[crosscheck\]'"):
            open_engine(engine, linear, LINF, 0)


def test_both_names_of_the_reference_are_known(linear, monkeypatch):
    package = pytest.importorskip("pyautoattack")
    monkeypatch.setitem(sys.modules, "pyautoattack", None)
    monkeypatch.setitem(sys.modules, "autoattack", package)
    importlib.invalidate_caches()
    assert open_engine("autoattack", linear, LINF, 0).package is package


@pytest.mark.parametrize("attacks", [[], ["apgd-ce", "apgd-ce"], ["aa-standard"]])
def test_attacks_that_cannot_be(linear, attacks):
    with pytest.raises(RobustzooError, match="expected some of apgd-ce"):
        run(linear, attacks=attacks)


def test_nothing_to_attack(linear):
    wrong = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    wrong[1].load_state_dict({k: -v for k, v in linear[1].state_dict().items()})
    pytest.importorskip("pyautoattack")
    found = run(wrong.eval(), attacks=["apgd-ce"], n=5)
    assert found.correct == 0 and found.rows == [] and "worst case" in found.text()


def test_the_command_gives_json(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchattacks", Fake("torchattacks", lambda x: x))
    command = ["crosscheck", "vit_micro2.digits_linf.at_base", "--engine", "torchattacks", "--n", "5"]
    done = CliRunner().invoke(group, [*command, "--attacks", "apgd-ce", "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert (document["schema"], document["n"]) == ("robustzoo.crosscheck/1", 5)


def test_more_images_than_there_are_means_all(linear, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchattacks", Fake("torchattacks", lambda x: x))
    digits = load_dataset("digits", split="test")
    pairs = [digits[i] for i in range(6)]
    data = (torch.stack([x for x, _ in pairs]), torch.tensor([y for _, y in pairs]))
    found = crosscheck(linear, data, LINF, engine="torchattacks", attacks=["apgd-ce"], progress=False)
    assert found.n == 6 and ", all" in found.images
