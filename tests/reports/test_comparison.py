"""compare: paired counts of two Evidence, and refusals in words where they are not about the same thing."""

from __future__ import annotations

import json

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from robustzoo.cli import group
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.reports.comparison import compare, open_evidence

OPTIONS = {"progress": False, "n": 40}


@pytest.fixture(scope="module")
def worse(linear):
    """The same classifier with a disturbed weight."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    state = {key: value.clone() for key, value in linear[1].state_dict().items()}
    state["weight"] += 0.4 * torch.randn(10, 64, generator=torch.Generator().manual_seed(3))
    model[1].load_state_dict(state)
    return model.eval()


@pytest.fixture(scope="module")
def pair(linear, worse, tmp_path_factory):
    """Two Evidence on the same images, and the folders they lie in."""
    folders = [tmp_path_factory.mktemp(name) for name in "ab"]
    return [
        (evaluate(model, "digits", "linf:1/40", "pgd-5", out=folder, **OPTIONS), folder)
        for model, folder in zip((linear, worse), folders, strict=True)
    ]


def test_the_table_counts_image_by_image(pair):
    (a, _), (b, _) = pair
    result = compare([a], [b])
    robust = [(x.robust, y.robust) for x, y in zip(a.verdicts, b.verdicts, strict=True)]
    assert result.robust.only_a == robust.count((True, False)) > 0
    assert result.robust.only_b == robust.count((False, True))
    assert result.robust.n == result.clean.n == 40
    text = result.text()
    assert f"{100 * result.robust.difference:+.1f} points" in text and "McNemar" in text
    same = compare([a], [a])
    assert same.robust.p_value == 1 and "by no more than chance explains" in same.text()


def test_files_folders_and_json(pair):
    (a, folder_a), (b, folder_b) = pair
    (file,) = (folder_b / "evidence").glob("*.json")
    done = CliRunner().invoke(group, ["compare", str(folder_a), str(file), "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.output)
    assert document["schema"] == "robustzoo.comparison/1"
    assert document["robust"]["p"] == compare([a], [b]).robust.p_value
    assert document["robust"]["low"] <= document["robust"]["difference"] <= document["robust"]["high"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (("digits", "linf:1/50", "pgd-5"), "threat model: linf:1/40 and linf:1/50"),
        (("digits", "linf:1/40", "pgd-4"), "protocol: pgd-5 .* and pgd-4"),
    ],
)
def test_other_terms_are_refused(pair, linear, changes, words):
    other = evaluate(linear, *changes, **OPTIONS)
    with pytest.raises(RobustzooError, match=words):
        compare([pair[0][0]], [other])


def test_other_images_are_refused_and_a_counterpart_is_found(pair, linear):
    a = pair[0][0]
    other = evaluate(linear, "digits", "linf:1/40", "pgd-5", n=30, progress=False)
    with pytest.raises(RobustzooError, match=r"images \(digest\).*Evaluate both models"):
        compare([a], [other])
    assert compare([a], [other, pair[1][0]]).b is pair[1][0]


def test_a_folder_without_evidence(tmp_path):
    with pytest.raises(RobustzooError, match="holds no Evidence"):
        open_evidence(tmp_path)
