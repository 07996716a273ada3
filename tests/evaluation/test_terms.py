"""A result is never lost to another: one run at a time in a folder, other results are not replaced."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from robustzoo.cards import Evidence
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.evaluate import evaluate
from robustzoo.evaluation.terms import place_of, reserved

X = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture
def model() -> nn.Module:
    made = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with torch.no_grad():
        made[1].weight.copy_(torch.randn(3, 64, generator=torch.Generator().manual_seed(1)))
    return made.eval()


def run(model, out, **options) -> Evidence:
    options = {"threat_model": "linf:0.1", "protocol": "pgd-2", "out": out, "progress": False, **options}
    return evaluate(model, (X, Y), **options)


def contents(folder):
    return {path.name: path.read_bytes() for path in (folder / "evidence").iterdir()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threat_model": "linf:0.2"}, r"threat model linf:1/10 there, linf:1/5 here"),
        ({"seed": 1}, "seed 0 there, 1 here"),
        ({"micro_batch_size": 2}, "micro batch size 6 there, 2 here"),
        ({"name": "other"}, "model differs in name"),
    ],
    ids=str,
)
def test_the_result_of_another_evaluation_is_not_overwritten(model, tmp_path, monkeypatch, options, words):
    run(model, tmp_path)
    before = contents(tmp_path)
    monkeypatch.setattr(
        "robustzoo.evaluation.evaluate.attack_all", lambda *_: pytest.fail("attacked before it was refused")
    )
    with pytest.raises(
        RobustzooError, match=rf"pgd-2\.data_tensors-test-all\.json holds.*{words}.*--out DIR.*delete"
    ):
        run(model, tmp_path, **options)
    assert contents(tmp_path) == before


def test_other_hand_picked_images_are_another_evaluation(model, tmp_path):
    run(model, tmp_path, indices=[0, 1])
    with pytest.raises(RobustzooError, match="dataset differs in indices, digest"):
        run(model, tmp_path, indices=[0, 2])


@pytest.mark.skipif(sys.platform == "win32", reason="links")
def test_a_link_to_nowhere_in_the_place_of_the_folder_is_refused(model, tmp_path):
    (tmp_path / "evidence").symlink_to(tmp_path / "evidence")
    with pytest.raises(RobustzooError, match="evidence is a link that leads nowhere"):
        run(model, tmp_path)


def test_folders_whose_names_differ_in_other_letters_alone_have_files_of_their_own():
    def place(name: str) -> Path:
        dataset = {"id": name, "split": "test", "subset": "all"}
        return place_of({"protocol": {"name": "pgd-2"}, "dataset": dataset}, Path("out"))

    places = {place(f"Bilder {letter}") for letter in "äöü漢字"} | {place("x" * 250 + x) for x in "ab"}
    assert len(places) == 7 and all(len(place.name) < 200 for place in places)
    assert place("digits").name == "pgd-2.digits-test-all.json"


def test_the_same_evaluation_keeps_its_result_and_a_damaged_file_does_not_go_unseen(model, tmp_path):
    first = run(model, tmp_path)
    assert run(model, tmp_path).deterministic_bytes() == first.deterministic_bytes()
    (path,) = (tmp_path / "evidence").glob("*.json")
    path.write_text("{")
    with pytest.raises(RobustzooError, match=r"no Evidence that can be read .*delete this file"):
        run(model, tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="no locks there")
def test_a_second_run_into_a_folder_is_refused_while_the_first_goes_on(model, tmp_path):
    out = tmp_path / "new" / "results"
    with reserved(out):
        with pytest.raises(
            RobustzooError, match=r"another evaluation is writing into .*choose another folder"
        ):
            run(model, out)
        assert [path.name for path in (out / "evidence").iterdir()] == [".lock"]
    assert not list(tmp_path.iterdir())
    run(model, out)
    assert sorted(path.suffix for path in (out / "evidence").iterdir()) == [".json", ".safetensors"]
