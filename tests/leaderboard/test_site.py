"""The static site as files: numbers are those of the Evidence they link to, reported ones stay apart."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from urllib.parse import unquote

import pytest

import robustzoo
from robustzoo.cards.evidence import Evidence
from robustzoo.data import load_dataset
from robustzoo.errors import RobustzooError
from robustzoo.hub.publish import write_card
from robustzoo.leaderboard import page
from robustzoo.leaderboard.lines import Line, read_model
from robustzoo.leaderboard.reported import from_robustbench, from_the_paper
from robustzoo.leaderboard.site import _card, build
from robustzoo.registry import entry
from robustzoo.registry.paper import cells

NAME = "vit_micro2.digits_linf.trades_trh"


class Links(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found += [value for key, value in attrs if key in ("href", "src")]


def test_every_number_is_that_of_the_evidence_it_links_to(site):
    text = (site / "index.html").read_text()
    cells = re.findall(
        r'<a href="(models/[^"]+\.json)">([\d.]+)</a> <small>([\d.]+) to ([\d.]+)</small>', text
    )
    assert len(cells) == 4  # robust and clean of two models
    for place, *numbers in cells:
        evidence = Evidence.load(site / place)
        stated = [
            [f"{100 * value:.1f}" for value in (a.value, a.low, a.high)]
            for a in (evidence.robust_accuracy, evidence.clean_accuracy)
        ]
        assert numbers in stated
    data = json.loads((site / "leaderboard.json").read_text())
    for row in data["verified"]:
        evidence = Evidence.load(site / row["evidence"])
        assert (
            row["robust"] == evidence.doc["robust_accuracy"]
            and row["clean"] == evidence.doc["clean_accuracy"]
        )
        assert (
            f"[{100 * row['robust']['value']:.1f}]({row['evidence']})"
            in (site / "leaderboard.md").read_text()
        )


def test_every_link_within_the_site_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site):
    for file in site.rglob("*.html"):
        text = file.read_text()
        assert not re.search(r'(?:src|<link[^>]*href)="(?:https?:)?//', text)
        ids = set(re.findall(r'id="([^"]+)"', text))
        for link in Links(text).found:
            if link.startswith("#"):
                assert link[1:] in ids, (file, link)
            elif not link.startswith(("https://", "http://")):
                assert (file.parent / link).is_file(), (file, link)
    assert sum(len(page._asset(name)) for name in ("page.js",)) < 150_000


def test_another_split_is_named_and_odd_file_names_are_reached(tmp_path):
    folder = shutil.copytree(entry(NAME).weights.folder, tmp_path / "mine")
    shutil.rmtree(folder / "evidence")
    model = robustzoo.load(f"local-dir:{folder}")
    for split in ("train", "test"):
        images = load_dataset("digits", split=split)
        robustzoo.evaluate(model, images, protocol="pgd-1", n=6, out=folder, progress=False)
    (file,) = (folder / "evidence").glob("*test*.json")
    file.rename(file.with_name("a?b#c%20d.json"))
    write_card(folder)
    build([read_model(folder)], tmp_path / "site")
    rows = json.loads((tmp_path / "site/leaderboard.json").read_text())["verified"]
    assert [(row["dataset"], row["split"]) for row in rows] == [("digits", "test"), ("digits", "train")]
    assert ">digits train<" in (tmp_path / "site/index.html").read_text()
    assert "| digits train |" in (tmp_path / "site/leaderboard.md").read_text()
    for row in rows:
        assert (
            Evidence.load(tmp_path / "site" / unquote(row["evidence"])).doc["dataset"]["split"]
            == row["split"]
        )
        assert f'href="{row["evidence"]}"' in (tmp_path / "site/index.html").read_text()


def test_pictures_of_an_authors_notes_are_their_words_alone():
    shown = _card(
        "---\na: 1\n---\n\n# A\n\n![own](evidence/accuracy.svg)\n\n"
        "![their *words*](https://example.org/a.png 'b')\n"
    )
    assert shown.count("<img") == 1 and 'src="evidence/accuracy.svg"' in shown
    assert "their words" in shown and "example.org" not in shown


def test_what_is_reported_is_labelled_and_never_among_what_is_verified(site):
    data = json.loads((site / "leaderboard.json").read_text())
    assert {row["kind"] for row in data["verified"]} == {"verified"}
    paper, robustbench = data["reported"]["paper"], data["reported"]["robustbench"]
    assert {row["kind"] for row in (*paper, *robustbench)} == {"reported"}
    assert {(r["name"], r["clean_percent"], r["aa_percent"]) for r in paper} == {
        (cell.name, cell.clean_percent, cell.aa_percent) for cell in cells()
    }
    assert len(robustbench) == len(from_robustbench()) > 150 and len(paper) == len(from_the_paper()) == 120
    assert all(0 <= r["lowest_percent"] <= r["aa_percent"] <= r["clean_percent"] <= 100 for r in robustbench)
    assert all(r["source"].startswith("https://github.com/RobustBench/") for r in robustbench)
    for name in ("paper.html", "robustbench.html"):
        text = (site / name).read_text()
        assert "<strong>Reported.</strong>" in text and NAME not in text
    assert robustbench[0]["name"] not in (site / "index.html").read_text()


def test_a_model_page_has_its_card_and_what_each_attack_left(site):
    text = (site / "models" / NAME / "index.html").read_text()
    assert "434 / 500" in text and "apgd-ce" in text and "figure1.png" in text
    assert "<h3>Intended use and limits</h3>" in text
    # The recipe's table is folded away, as in the card.
    assert re.search(r"<details><summary>All \d+ values.*?</summary>\s*<div.*?</details>", text, re.DOTALL)
    assert "&lt;details" not in text
    assert (site / "models" / NAME / "figure1.png").read_bytes().startswith(b"\x89PNG")


def test_a_card_cannot_bring_script_or_markup(models):
    from robustzoo.leaderboard.site import _card

    shown = _card(
        "---\na: b\n---\n\n# x\n\n<script>alert(1)</script> [a](javascript:alert(1)) <img src=x onerror=y>"
    )
    assert "<script" not in shown and "<img" not in shown and 'href="javascript' not in shown


def test_a_folder_whose_card_says_more_is_refused(tmp_path):
    folder = tmp_path / "m"
    shutil.copytree(entry(NAME).weights.folder, folder)
    assert read_model(folder).name == f"{NAME} (m)"
    card = (folder / "README.md").read_text()
    (folder / "README.md").write_text(card.replace("434", "444"))
    with pytest.raises(RobustzooError, match="the card is not good"):
        read_model(folder)
    shutil.rmtree(folder / "evidence")
    with pytest.raises(RobustzooError, match="no evidence"):
        read_model(folder)


def test_a_site_replaces_a_site_and_nothing_else(site, tmp_path):
    build([], tmp_path / "site")
    build([], tmp_path / "site")
    assert "0</span> rows" in (tmp_path / "site" / "index.html").read_text()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(RobustzooError, match="something else"):
        build([], tmp_path / "other")
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_names_of_folders_are_text(models):
    from dataclasses import replace

    from robustzoo.leaderboard.site import _verified_page

    strange = replace(models[0], name='<b>"x"\n\u202e', slug="x")
    text = _verified_page([Line(strange, *strange.documents[0])])
    assert "<b>" not in text and "\u202e" not in text and "&lt;b&gt;" in text
