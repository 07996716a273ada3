"""From a folder to a card and a bundled model, and what is refused on the way."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

import robustzoo
from robustzoo import atomic_files
from robustzoo.attacks.protocols import protocol
from robustzoo.cards.check import lint_card
from robustzoo.cards.claims import CardError, Claim
from robustzoo.cards.evidence import EvidenceError
from robustzoo.cards.evidence_rules import protocol_digest
from robustzoo.cards.holdings import all_evidence, main_evidence
from robustzoo.cards.render import render_card
from robustzoo.cards.witnesses import Witnesses
from robustzoo.cli import group
from robustzoo.errors import RobustzooError
from robustzoo.hub import publish
from robustzoo.models import pixel_model, read_folder, write_folder
from robustzoo.registry import ThreatModel, UnknownName, entries, recipe
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.entries import public_name

NAME = "vit_micro2.digits_linf.at_base"


def evaluated(folder, name=NAME, overrides=None, protocol="pgd-1", n=8):
    """A model folder with untrained weights and real evidence on a few digits."""
    made = recipe(name, overrides)
    write_folder(folder, pixel_model(made), made)
    model = robustzoo.load(f"local-dir:{folder}")
    robustzoo.evaluate(model, "digits", protocol=protocol, n=n, out=folder, progress=False)
    return folder


def test_publish_copies_writes_the_card_and_locks_the_hash(tmp_path, checkout):
    folder = evaluated(tmp_path / "run")
    item = publish.publish_bundled(folder)
    bundled = checkout / "bundled" / NAME
    assert (
        item.weights.sha256
        == sha256_file(folder / "model.safetensors")
        == sha256_file(bundled / "model.safetensors")
    )
    assert robustzoo.list_models(published_only=True) == [NAME]
    card = (bundled / "README.md").read_text()
    kept = checkout.parent / "model_cards" / f"{NAME}.md"
    assert kept.read_text() == card.replace("](evidence/", f"](../robustzoo/bundled/{NAME}/evidence/")
    assert robustzoo.verify(NAME, card=kept, progress=False).outcome == "consistent"
    shown = re.findall(r"^!\[.*\]\((.*)\)", kept.read_text(), re.MULTILINE)
    assert shown and all((kept.parent / place).is_file() for place in shown)
    (claim,) = Claim.from_card(card)
    assert claim.robust_correct == main_evidence(bundled).robust_accuracy.correct
    assert robustzoo.load(NAME).folder == bundled
    assert robustzoo.verify(NAME, progress=False).outcome == "consistent"


def test_publishing_again_replaces_and_keeps_the_other_entries(tmp_path, checkout):
    publish.publish_bundled(evaluated(tmp_path / "first"))
    publish.publish_bundled(evaluated(tmp_path / "other", "vit_micro2.digits_linf.trades_base"))
    item = publish.publish_bundled(evaluated(tmp_path / "second", n=9))
    locked = json.loads(entries.LOCK_FILE.read_text())["models"]
    assert [row["name"] for row in locked] == [NAME, "vit_micro2.digits_linf.trades_base"]
    assert locked[0]["sha256"] == item.weights.sha256
    assert not list((checkout / "bundled").glob(".*"))


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("place", ["robustzoo/bundled", "model_cards", "robustzoo"])
def test_a_checkout_that_cannot_be_written_is_refused_before_anything_changes(
    tmp_path, checkout, monkeypatch, place
):
    publish.publish_bundled(evaluated(tmp_path / "first"))
    before, second = contents(checkout.parent), evaluated(tmp_path / "second", n=9)
    why = atomic_files.why_unwritable
    closed = checkout.parent / place
    reason = lambda folder: f"{folder} is read-only" if folder == closed else why(folder)  # noqa: E731
    monkeypatch.setattr(atomic_files, "why_unwritable", reason)
    with pytest.raises(CardError, match=f"nothing was changed: {closed} is read-only"):
        publish.publish_bundled(second)
    assert contents(checkout.parent) == before


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("step", ["card", "lock", "folder"])
def test_a_step_that_fails_leaves_the_checkout_as_it_was(tmp_path, checkout, monkeypatch, step, again):
    name = "vit_micro2.digits_linf.trades_base"
    publish.publish_bundled(evaluated(tmp_path / "other", name))
    if again:
        publish.publish_bundled(evaluated(tmp_path / "first"))
    before, second = contents(checkout.parent), evaluated(tmp_path / "second", n=9)
    replace = Path.replace
    monkeypatch.setattr(atomic_files, "_exchange", lambda one, other: False)  # so that it is two renames
    refused = {
        "card": checkout.parent / "model_cards" / f"{NAME}.md",
        "lock": entries.LOCK_FILE,
        "folder": checkout / "bundled" / NAME,
    }[step]
    failures = []

    def full(self, target):
        if Path(target) == refused and not failures:
            failures.append(target)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        publish.publish_bundled(second)
    assert failures and contents(checkout.parent) == before
    publish.publish_bundled(second)
    assert robustzoo.list_models(published_only=True) == sorted([NAME, name])
    assert robustzoo.load(NAME).folder == checkout / "bundled" / NAME


def test_a_card_written_anew_keeps_the_authors_notes_and_names_other_weights_by_their_hash(tmp_path):
    folder = evaluated(tmp_path / "run")
    name = f"{NAME} (weights {sha256_file(folder / 'model.safetensors')[:12]})"
    card = publish.write_card(folder)
    text = card.read_text()
    assert f"# {name}\n" in text and f"- name: {name}\n" in text
    assert f'load("{NAME}")' not in text and "robustzoo verify FOLDER" in text
    card.write_text(text := text + "\n## Notes by the author\n\nMine.\n")
    publish.write_card(folder)
    assert card.read_text() == text
    assert robustzoo.verify(folder, progress=False).exit_code in (0, 3)


def test_the_card_of_a_changed_recipe_says_to_give_its_folder(tmp_path):
    folder = evaluated(tmp_path / "run", overrides={"base_lr": 0.5})
    card = publish.write_card(folder).read_text()
    assert 'robustzoo.load("local-dir:FOLDER")' in card and "robustzoo verify FOLDER --mode spot" in card
    assert f"verify {NAME}" not in card
    assert robustzoo.verify(f"local-dir:{folder}", progress=False).outcome == "consistent"
    changed = robustzoo.load(f"local-dir:{folder}").recipe.name
    with pytest.raises(UnknownName, match="is not rebuilt from its name: give the model's folder"):
        robustzoo.load(changed)


def card(folder, *arguments):
    return CliRunner().invoke(group, ["card", str(folder), *arguments])


def test_a_licence_is_kept_in_lower_case_and_what_an_author_says_in_the_notes(tmp_path):
    """SPDX identifiers have no case."""
    folder = copied(tmp_path / "run")
    assert card(folder, "--licence", " CC-BY-4.0 ").exit_code == 0
    assert read_folder(folder).license == "cc-by-4.0"
    assert "\nlicense: cc-by-4.0\n" in (folder / "README.md").read_text()
    for said in ("Ada", "Ada &lt;ada@example.org&gt;", "#1 lab of <https://example.org>, C# 3 < 4"):
        done = card(folder, "--author", said, "--contact", "ada@example.org", "--licence", "MIT")
        assert done.exit_code == 0, done.exception
        assert f"- Author: {said}\n" in (folder / "README.md").read_text()
    assert robustzoo.verify(folder, progress=False).exit_code in (0, 3)


SAID = [
    ("--licence", "MIT or so", r"'MIT or so' is no SPDX identifier; expected .*apache-2\.0"),
    ("--author", "Ada <ada@example.org>", "--author .*give it with --contact.*&lt;ada@example"),
    ("--contact", "<ada@example.org>", "--contact .*in angle brackets"),
    ("--author", "<b>Ada</b>", "--author .*has the HTML '<b>"),
    ("--author", " ", "--author ' ' is an empty text"),
    ("--citation", "\u200b\n", "is an empty text"),
    ("--author", "## Results", "--author '## Results' begins a heading"),
    ("--citation", "one\n - # Two", "begins a heading"),
]


@pytest.mark.parametrize(("option", "text", "words"), SAID, ids=[ascii(row[1]) for row in SAID])
def test_what_an_author_cannot_say_is_refused_by_its_option(tmp_path, option, text, words):
    folder = copied(tmp_path / "run")
    before = contents(folder)
    done = card(folder, option, text)
    assert isinstance(done.exception, RobustzooError) and re.search(words, str(done.exception))
    assert "evidence" not in str(done.exception) and contents(folder) == before


def copied(folder, name=NAME):
    """A published folder that is on this machine: weights, card, evidence and witnesses."""
    return Path(shutil.copytree(Path(robustzoo.__file__).parent / "bundled" / name, folder))


def _twice(folder):
    (path,) = (folder / "evidence").glob("*.json")
    path.with_name("copy.json").write_bytes(path.read_bytes())


def _no_file(folder):
    (folder / "README.md").unlink()
    (folder / "README.md").mkdir()


def _without(pattern):
    return lambda folder: [path.unlink() for path in folder.glob(pattern)]


def _changed(folder):
    shutil.rmtree(folder)
    evaluated(folder, overrides={"base_lr": 0.5})


CARD, PUBLISH = publish.write_card, publish.publish_bundled
REFUSED = [
    (CARD, _twice, r"copy\.json .*remove one of them"),
    (CARD, _no_file, "move it away"),
    (CARD, _without("evidence/*"), "no evidence in .*robustzoo evaluate"),
    (PUBLISH, _without("evidence/*.safetensors"), r"\.safetensors is missing; run `robustzoo evaluate"),
    (PUBLISH, _changed, f"changed recipe.*Train {NAME} unchanged"),
]


@pytest.mark.parametrize(("use", "spoil", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_refused(tmp_path, checkout, use, spoil, words):
    folder = copied(tmp_path / "run")
    spoil(folder)
    before = contents(folder)
    with pytest.raises(CardError, match=f"(?s){words}"):
        use(folder)
    assert contents(folder) == before and robustzoo.list_models(published_only=True) == []


def test_more_than_a_package_can_carry_is_not_bundled(tmp_path, checkout, monkeypatch):
    monkeypatch.setattr(publish, "MAX_BUNDLED_BYTES", 1000)
    with pytest.raises(CardError, match=r"at most 1,000\. Larger ones belong on the Hub"):
        publish.publish_bundled(copied(tmp_path / "run"))
    assert robustzoo.list_models(published_only=True) == []


def test_evidence_about_other_weights_makes_no_card(tmp_path):
    folder, other = evaluated(tmp_path / "run"), evaluated(tmp_path / "other")
    (folder / "model.safetensors").write_bytes((other / "model.safetensors").read_bytes())
    with pytest.raises(CardError, match=sha256_file(other / "model.safetensors")):
        publish.card_text(folder)


def test_a_weak_attack_under_a_strong_name_makes_no_card(tmp_path):
    """Whether it comes with the digest of what it is, or with that of what it is called."""
    folder = evaluated(tmp_path / "run")
    (path,) = (folder / "evidence").glob("*.json")
    card = publish.write_card(folder).read_text()
    stated = json.loads(path.read_text())
    strong = protocol("aa-standard", ThreatModel.parse("linf:1/10"), 10)
    members = stated["protocol"]["members"]
    honest = {"name": "aa-standard", "members": members, "digest": protocol_digest("aa-standard", members)}
    path.write_text(json.dumps({**stated, "protocol": honest}))
    with pytest.raises(CardError, match=f"digest {honest['digest']}, here {strong.digest}"):
        publish.write_card(folder)
    path.write_text(json.dumps({**stated, "protocol": {**honest, "digest": strong.digest}}))
    for use in (publish.write_card, lambda place: robustzoo.verify(f"local-dir:{place}", progress=False)):
        with pytest.raises(EvidenceError, match=r"invalid at protocol\.digest"):
            use(folder)
    assert (folder / "README.md").read_text() == card


def test_evidence_of_more_witnesses_than_its_file_holds_makes_no_card_and_is_not_verified(tmp_path):
    folder = copied(tmp_path / "run")
    (path,) = (folder / "evidence").glob("*.json")
    stated = json.loads(path.read_text())
    file = path.with_name(stated["witnesses"]["file"])
    kept = Witnesses.load(file)
    few = Witnesses.of(
        kept.ids[:2], [kept.stored(row) for row in range(2)], kept.margins[:2], kept.image_shape
    )
    stated["witnesses"]["sha256"] = few.save(file)
    path.write_text(json.dumps(stated))
    before = (folder / "README.md").read_text()
    for use in (publish.write_card, lambda place: robustzoo.verify(f"local-dir:{place}", progress=False)):
        with pytest.raises(RobustzooError, match=f"holds 2 witnesses, the evidence names {len(kept)}"):
            use(folder)
    assert (folder / "README.md").read_text() == before


def test_the_main_evidence_is_the_standard_protocol_then_what_found_the_most(tmp_path):
    folder = evaluated(tmp_path / "run", n=8)
    model = robustzoo.load(f"local-dir:{folder}")
    for name, n in (("pgd-9", 8), ("pgd-1", 20)):
        robustzoo.evaluate(model, "digits", protocol=name, n=n, out=folder, progress=False)
    found = all_evidence(folder)
    assert len(found) == 3
    assert main_evidence(folder).robust_accuracy.value == min(e.robust_accuracy.value for e in found)
    robustzoo.evaluate(model, "digits", protocol="aa-standard", n=2, out=folder, progress=False)
    assert main_evidence(folder).doc["protocol"]["name"] == "aa-standard"
    assert main_evidence(tmp_path) is None


def test_a_card_states_every_evidence_so_that_none_hides_another(tmp_path):
    folder = evaluated(tmp_path / "run", protocol="pgd-1", n=9)
    model = robustzoo.load(f"local-dir:{folder}")
    robustzoo.evaluate(model, "digits", protocol="apgd-ce", n=5, out=folder, progress=False)
    claims = Claim.from_card(publish.card_text(folder))
    assert {(claim.protocol, claim.n) for claim in claims} == {("pgd-1", 9), ("apgd-ce", 5)}


def test_a_card_about_other_weights_is_refused(tmp_path):
    folder = evaluated(tmp_path / "run")
    path = publish.write_card(folder)
    found = sha256_file(folder / "model.safetensors")
    path.write_text(path.read_text().replace(found, "f" * 64))
    with pytest.raises(RobustzooError, match="f" * 64):
        robustzoo.verify(f"local-dir:{folder}", progress=False)


@pytest.mark.parametrize("place", ["", "evidence"])
def test_a_folder_that_may_not_be_read_is_not_told_as_an_empty_one(tmp_path, monkeypatch, place):
    folder = copied(tmp_path / "run")
    closed = folder / place if place else folder
    scandir, stat = os.scandir, os.stat

    def refusing(call):  # as the system does for another user's folder, but also for root
        def refused(path, *args, **kwargs):
            inside = isinstance(path, str | Path) and closed in Path(path).parents
            if inside or (call is scandir and path == closed):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return call(path, *args, **kwargs)

        return refused

    monkeypatch.setattr(os, "scandir", refusing(scandir))
    monkeypatch.setattr(os, "stat", refusing(stat))
    for arguments in (["card"], ["verify"], ["report"], ["compare", str(folder)]):
        found = CliRunner().invoke(group, [*arguments, str(folder)])
        said = found.output if found.exit_code == 2 else str(found.exception)
        assert "Permission denied" in said and str(closed) in said, arguments
        assert "there is no card" not in said and "holds no Evidence" not in said


def test_pictures_are_the_same_bytes_again_and_a_forged_one_is_named(tmp_path, monkeypatch):
    folder = shutil.copytree(entries.read_lock()[NAME].folder, tmp_path / "model")
    publish.write_card(folder)
    pictures = {path: path.read_bytes() for path in (folder / "evidence").glob("*.[sp][vn]g")}
    assert {path.name for path in pictures} == {"accuracy.svg", "perturbations.png"}
    publish.write_card(folder)
    assert {path: path.read_bytes() for path in pictures} == pictures
    with Image.open(folder / "evidence" / "perturbations.png") as drawn:
        whole = drawn.size
    # The card's three lines, on a file of an image.
    Image.new("RGB", (60, 40), "white").save(tmp_path / "image.png")
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    found = {}
    exec(code.replace('"image.png"', repr(str(tmp_path / "image.png"))), found)
    assert found["pixels"].shape == (1, 8, 8) and 0 <= found["label"] < 10
    assert sum(map(len, pictures.values())) < 20_000
    # Where the images are not at hand the picture of before stays; without one the points are drawn alone.
    monkeypatch.setattr("robustzoo.hub.publish.WITHOUT_FILES", frozenset())
    publish.write_card(folder)
    assert {path: path.read_bytes() for path in pictures} == pictures
    (folder / "evidence" / "perturbations.png").write_bytes(b"no picture")
    publish.write_card(folder)
    with Image.open(folder / "evidence" / "perturbations.png") as drawn:
        assert drawn.size[0] == whole[0] and drawn.size[1] < whole[1] / 2
    assert not any("picture" in note for note in robustzoo.verify(folder, progress=False).notes)
    # A card kept elsewhere names them there; that in the folder may name no others.
    text = (folder / "README.md").read_text()
    kept = tmp_path / "kept.md"
    kept.write_text(publish.printed(text, "https://example.org/x"))
    assert robustzoo.verify(folder, card=kept, progress=False).outcome == "consistent"
    shutil.copyfile(kept, folder / "README.md")
    assert any("example.org" in line for line in lint_card(kept.read_text(), evidence=all_evidence(folder)))
    with pytest.raises(CardError, match=r"example\.org"):
        robustzoo.verify(folder, progress=False)
    (folder / "README.md").write_text(text)
    svg = folder / "evidence" / "accuracy.svg"
    svg.write_text(svg.read_text().replace(" %</text>", "9 %</text>"))
    report = robustzoo.verify(folder, progress=False)
    assert any("accuracy.svg is not what the evidence gives" in note for note in report.notes)


def test_a_card_of_the_first_layout_is_verified_and_says_how_to_renew_it(tmp_path):
    folder = evaluated(tmp_path / "run")
    config, documents = read_folder(folder), all_evidence(folder)
    sha256 = sha256_file(folder / "model.safetensors")
    name = public_name(NAME, sha256)
    card = render_card(config.recipe, documents, sha256, config.license, name=name, layout=1)
    (folder / "README.md").write_text(card)
    report = robustzoo.verify(folder, progress=False)
    assert report.outcome == "consistent" and any("robustzoo card" in note for note in report.notes)
    publish.write_card(folder)
    report = robustzoo.verify(folder, progress=False)
    assert report.outcome == "consistent" and not any("robustzoo card" in note for note in report.notes)
