"""verify(): honest cards pass, forged ones are caught by the mode that can; reports say what was tested."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from robustzoo import models
from robustzoo.cards import CardError, Evidence, EvidenceError, Witnesses, render_card
from robustzoo.cards.evidence_rules import protocol_digest
from robustzoo.errors import RobustzooError
from robustzoo.evaluation import prepare
from robustzoo.models.folder import read_recipe
from robustzoo.models.pixel_model import PixelModel
from robustzoo.registry import digests, recipe
from robustzoo.verification.verify import verify

NAME = "vit_micro2.digits_linf.at_base"
STEM = "pgd-5.digits-test-n100-seed0"
TOLERANCE = 3  # of 100 images
SHIFT = 5  # 5 points of 100 images


def run(folder, mode="replay", **options):
    return verify(folder, mode=mode, progress=False, **options)


def evidence_of(folder: Path) -> Evidence:
    return Evidence.load(folder / "evidence" / f"{STEM}.json")


def witnesses_of(folder: Path) -> Witnesses:
    return Witnesses.load(folder / "evidence" / f"{STEM}.witness.safetensors")


def store_witnesses(folder: Path, evidence: Evidence, witnesses: Witnesses) -> None:
    """Write a witness file and the Evidence that names it."""
    file = f"{STEM}.witness.safetensors"
    sha256 = witnesses.save(folder / "evidence" / file)
    evidence.doc["witnesses"] = {"file": file, "sha256": sha256, "count": len(witnesses)}
    evidence.save(folder / "evidence" / f"{STEM}.json")


def keep(witnesses: Witnesses, mask) -> Witnesses:
    return Witnesses(witnesses.ids[mask], witnesses.pixels[mask], witnesses.margins[mask])


def rebuilt(evidence: Evidence, samples: list[dict], **changes) -> Evidence:
    doc = {**evidence.doc, **changes}
    sections = ("model", "protocol", "dataset", "seed", "micro_batch_size", "passes", "run")
    return Evidence.build(
        threat_model=evidence.threat_model, samples=samples, **{name: doc[name] for name in sections}
    )


def write_card(folder: Path, evidence: Evidence) -> None:
    text = render_card(recipe(NAME), evidence, evidence.doc["model"]["sha256"], "apache-2.0")
    (folder / "README.md").write_text(text, encoding="utf-8")


def robuster(evidence: Evidence, shift: int) -> tuple[Evidence, list[int]]:
    """The Evidence with `shift` broken samples called robust (below 0: the reverse), and their ids."""
    samples = [dict(sample) for sample in evidence.doc["samples"]]
    broken = [s for s in samples if s["broken_by"] is not None]
    robust = [s for s in samples if s["robust"]]
    chosen = broken[:shift] if shift > 0 else robust[:-shift]
    for sample in chosen:
        sample["robust"] = shift > 0
        sample["broken_by"] = None if shift > 0 else broken[0]["broken_by"]
        if shift < 0 and sample["broken_by"]["target"] == sample["label"]:
            sample["broken_by"] = {**sample["broken_by"], "target": None}
    return rebuilt(evidence, samples), [sample["id"] for sample in chosen]


def test_an_honest_card_is_consistent_by_replay(published):
    report = run(published)
    assert (report.outcome, report.exit_code) == ("consistent", 0)
    assert report.parts == {"clean": "holds", "upper": "holds", "lower": "not tested"}
    counts = evidence_of(published).doc["counts"]
    assert report.numbers["clean_found"] == counts["clean_correct"]
    assert report.numbers["robust_at_most"] == counts["robust_correct"]
    assert 20 < counts["robust_correct"] < counts["clean_correct"] - 10, "the fixture should be in between"
    assert not report.claims[0].notes and report.claims[0].fingerprint == {}
    text = report.text()
    assert "CONSISTENT by replay" in text and "lower  not tested" in text and "mode full" in text
    assert verify(published, require="confirmed", progress=False).exit_code == 3


def test_an_honest_card_is_confirmed_in_full(published, tmp_path):
    log = tmp_path / "verifications.jsonl"
    same = run(published, "full", same_seed=True, log=log)
    counts = evidence_of(published).doc["counts"]
    assert (same.outcome, same.exit_code) == ("confirmed", 0)
    assert set(same.parts.values()) == {"holds"}
    assert same.numbers["robust_found"] == counts["robust_correct"]
    assert same.numbers["verdicts_changed"] == 0
    fresh = run(published, "full", require="confirmed", log=log)
    assert (fresh.outcome, fresh.exit_code) == ("confirmed", 0)
    assert fresh.claims[0].seed not in (None, evidence_of(published).seed)
    assert f"seed of this run: {fresh.claims[0].seed}" in fresh.text()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["claims"][0]["seed"] for line in lines] == [same.claims[0].seed, fresh.claims[0].seed]
    assert json.loads(json.dumps(fresh.to_json()))["outcome"] == "confirmed"


def forge(folder: Path) -> Evidence:
    """Card and Evidence 5 points too high, with the witnesses cut to match."""
    forged, ids = robuster(evidence_of(folder), SHIFT)
    witnesses = witnesses_of(folder)
    store_witnesses(folder, forged, keep(witnesses, ~np.isin(witnesses.ids, ids)))
    write_card(folder, forged)
    return forged


@pytest.mark.parametrize("mode", ["replay", "spot", "full"])
def test_a_verification_makes_the_model_ready_once_and_hashes_its_weights_once(published, monkeypatch, mode):
    hashed, made_ready = [], []
    honest, once = digests.sha256_file, prepare.prepare

    def counted(path):
        hashed.append(Path(path).name)
        return honest(path)

    def counted_ready(*arguments, **options):
        made_ready.append(arguments)
        return once(*arguments, **options)

    for module in (digests, prepare, models.folder):
        monkeypatch.setattr(module, "sha256_file", counted)
    monkeypatch.setattr("robustzoo.verification.verify.prepare", counted_ready)
    monkeypatch.setattr(prepare, "state_digest", lambda model: pytest.fail("hashed in memory"))
    assert run(published, mode).exit_code == 0
    assert hashed.count("model.safetensors") == 1 and len(made_ready) == 1


def test_card_evidence_and_witnesses_forged_together(folder):
    forged = forge(folder)
    replayed = run(folder)
    assert replayed.outcome == "consistent" and replayed.parts["lower"] == "not tested"
    assert replayed.numbers["robust_at_most"] == forged.doc["counts"]["robust_correct"]
    full = run(folder, "full")
    assert (full.outcome, full.exit_code) == ("refuted", 1)
    assert full.parts == {"clean": "holds", "upper": "holds", "lower": "refuted"}
    assert full.numbers["verdicts_changed"] >= SHIFT - TOLERANCE
    unmasked = run(folder, "full", same_seed=True)
    assert unmasked.outcome == "refuted" and "the Evidence was changed" in unmasked.text()


def test_a_card_that_claims_more_than_its_evidence_is_refuted_by_the_witnesses(folder):
    write_card(folder, robuster(evidence_of(folder), SHIFT)[0])
    report = run(folder)
    assert (report.outcome, report.exit_code) == ("refuted", 1)
    assert report.parts == {"clean": "holds", "upper": "holds", "lower": "refuted"}
    assert "its own Evidence counts" in report.text()


def test_a_card_that_claims_less_than_its_evidence_is_refuted(folder):
    write_card(folder, robuster(evidence_of(folder), -SHIFT)[0])
    report = run(folder)
    assert report.outcome == "refuted"
    assert report.parts == {"clean": "holds", "upper": "refuted", "lower": "not tested"}
    full = run(folder, "full", same_seed=True)
    assert (full.outcome, full.parts["upper"], full.parts["lower"]) == ("refuted", "refuted", "holds")


@pytest.mark.parametrize(("shift", "mode"), [(SHIFT, "replay"), (-SHIFT, "replay"), (SHIFT, "full")])
def test_a_refuted_claim_says_what_was_claimed_what_was_found_and_the_difference(folder, shift, mode):
    true = evidence_of(folder).doc["counts"]["robust_correct"]
    write_card(folder, robuster(evidence_of(folder), shift)[0])
    report = run(folder, mode, same_seed=mode == "full")
    part = "lower" if shift > 0 else "upper"
    words = f"left {true} robust" if mode == "full" else f"own Evidence counts {true}"
    document = json.loads(json.dumps(report.to_json()))["claims"][0]
    assert document["parts"][part] == "refuted"
    for text in (report.text(), document["reasons"][part]):
        assert f"claimed {true + shift}, " in text
        assert f"{words} ({-shift:+d}, tolerance 3)" in text
    numbers = document["numbers"]
    assert numbers["robust_claimed"] == true + shift and numbers["robust_in_evidence"] == true
    assert numbers.get("robust_difference") == (-shift if mode == "full" else None)


def restate(folder: Path, old: str, new: str) -> None:
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


@pytest.mark.parametrize("mode", ["replay", "full"])
def test_a_card_that_tells_people_other_numbers_than_machines_is_refused_with_both(folder, mode):
    evidence = evidence_of(folder)
    accuracy = evidence.robust_accuracy
    restate(folder, f"| {accuracy.correct} / 100 | **{accuracy.percent}** |", "| 99 / 100 | **99.0 %** |")
    with pytest.raises(CardError) as caught:
        run(folder, mode)
    text = str(caught.value)
    row = "robust, L∞ 1/40 | pgd-5 |"
    assert f"states what the metadata does not give: {row} 99 / 100 | 99.0 %" in text
    assert f"the metadata gives: {row} {accuracy.correct} / 100 | {accuracy.percent}" in text
    assert "robustzoo card" in text


FALSE = [
    ("most **L∞ 1/10**", "most **L∞ 1/4**"),
    ("test split", "train split"),
    ("micro-batch 64", "micro-batch 1"),
    ("Pixel digest `", "Pixel digest `0"),
    ("202,186 parameters", "2,186 parameters"),
    ("points wide", "thousandths wide"),
    ("| `base_lr` | 0.001 |", "| `base_lr` | 0.1 |"),
    ("## Results", "It is 99 % robust.\n\n## Results"),
    ("\n| accuracy |", "\n<!--\n| accuracy |"),
    (
        "    metrics:\n",
        "    metrics:\n    - type: accuracy\n      value: 0.99\n      name: Robust accuracy\n",
    ),
]


@pytest.mark.parametrize(("true", "false"), FALSE)
def test_any_other_text_than_the_evidences_is_refused_with_its_first_line(folder, true, false):
    restate(folder, true, false)
    with pytest.raises(CardError, match=r"line \d+ of the .*(should be|nothing more should)"):
        run(folder)


def test_notes_by_the_author_may_say_anything_and_are_reported_as_unchecked(folder):
    path = folder / "README.md"
    path.write_text(path.read_text() + "\n## Notes by the author\n\nIt is 99 % robust.\n")
    report = run(folder)
    assert report.outcome == "consistent" and "author's notes" in report.text()


@pytest.mark.parametrize(
    ("notes", "problem"),
    [("## Results\n\nSee above.", "repeat the heading 'Results'"), ("| x | 9 / 10 |", "the table row")],
)
def test_notes_by_the_author_cannot_look_like_the_cards_results(folder, notes, problem):
    path = folder / "README.md"
    path.write_text(path.read_text() + f"\n## notes by the author\n\n{notes}\n")
    with pytest.raises(CardError, match=problem):
        run(folder)


def edit_config(folder, edit):
    path = folder / "config.json"
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def test_a_source_in_the_folder_is_no_place_for_claims(folder):
    def claim(text):
        edit_config(folder, lambda d: d["robustzoo"]["recipe"]["sources"].update(base_lr=text))

    claim("proved optimal at 99.9 % robust accuracy")
    assert run(folder).outcome == "consistent", "the card has the registry's source, not the folder's"
    evidence = evidence_of(folder)
    assert "99.9" not in render_card(
        read_recipe(folder), evidence, evidence.doc["model"]["sha256"], "apache-2.0"
    )
    claim("ours |\n\n**Robust accuracy is 99.9 %**")
    with pytest.raises(RobustzooError, match="one line"):
        run(folder)


def test_the_cards_licence_is_that_of_the_folder(folder):
    edit_config(folder, lambda d: d["pretrained_cfg"].update(license="mit"))
    with pytest.raises(CardError, match=r"'license: apache-2.0', and should be 'license: mit'"):
        run(folder)
    path = folder / "README.md"
    text = path.read_text()
    path.write_text(text.replace("license: apache-2.0", "license: mit").replace("`apache-2.0`", "`mit`"))
    assert run(folder).outcome == "consistent"
    edit_config(folder, lambda d: d["pretrained_cfg"].update(license="My own, see below"))
    with pytest.raises(RobustzooError, match="SPDX"):
        run(folder)


@pytest.mark.parametrize("stated", [NAME, None])
def test_other_weights_of_a_published_name_are_not_called_by_it(folder, stated):
    sha256 = evidence_of(folder).doc["model"]["sha256"]
    name = f"{NAME} (weights {sha256[:12]})"
    text = render_card(recipe(NAME), evidence_of(folder), sha256, "apache-2.0", name=stated or name)
    (folder / "README.md").write_text(text)
    report = run(folder)
    assert report.text().startswith(f"{name}: CONSISTENT")
    assert f"{NAME} is a published model, and these are other weights" in report.text()


def test_a_difference_within_the_tolerance_is_noted(folder):
    write_card(folder, robuster(evidence_of(folder), 2)[0])
    report = run(folder)
    assert report.outcome == "consistent" and "its own Evidence counts" in report.text()
    assert "(-2, tolerance 3)" in report.text()
    assert run(folder, tolerance=1).outcome == "refuted"


def test_a_wrong_clean_count_is_refuted(folder):
    samples = [dict(sample) for sample in evidence_of(folder).doc["samples"]]
    for sample in [s for s in samples if s["predicted"] != s["label"]][:SHIFT]:
        sample.update(predicted=sample["label"], robust=True)
    forged = rebuilt(evidence_of(folder), samples)
    forged.save(folder / "evidence" / f"{STEM}.json")
    write_card(folder, forged)
    report = run(folder)
    assert (report.outcome, report.parts["clean"]) == ("refuted", "refuted")


def test_another_epsilon_is_not_comparable(folder):
    card = (folder / "README.md").read_text()
    evidence = evidence_of(folder)
    evidence.doc["threat_model"]["epsilon"] = "1/20"
    write_card(folder, evidence)
    assert (folder / "README.md").read_text() != card
    report = run(folder)
    assert (report.outcome, report.exit_code) == ("not comparable", 4)
    assert [str(value) for value in report.claims[0].differences["threat_model"]] == [
        "linf:1/20",
        "linf:1/40",
    ]
    assert "claimed linf:1/20, found linf:1/40" in report.text()
    assert set(report.parts.values()) == {"not tested"}
    assert json.loads(json.dumps(report.to_json()))["exit_code"] == 4


@pytest.mark.parametrize(
    ("section", "key", "value", "field"),
    [
        ("dataset", "digest", "0" * 64, "dataset digest"),
        ("dataset", "subset", "n100-seed7", "subset"),
        ("protocol", "name", "pgd-99", "protocol of this version"),
        ("model", "sha256", None, "weights sha256"),
        ("dataset", "num_classes", 11, "num_classes"),
    ],
)
def test_other_terms_are_not_comparable(folder, section, key, value, field):
    evidence = evidence_of(folder)
    weights = evidence.doc["model"]["sha256"]
    evidence.doc[section][key] = value
    stated = evidence.doc["protocol"]
    stated["digest"] = protocol_digest(stated["name"], stated["members"])
    evidence.save(folder / "evidence" / f"{STEM}.json")
    evidence.doc["model"]["sha256"] = weights
    write_card(folder, evidence)
    report = run(folder)
    assert (report.outcome, report.exit_code) == ("not comparable", 4)
    assert field in report.claims[0].differences


def test_hand_picked_images_do_not_pass_as_the_random_subset(folder):
    """The images are other ones than the subset's name says, with the digest that is right for them."""
    from robustzoo.data import load_dataset, pixel_digest

    evidence = evidence_of(folder)
    wrong = {s["id"] for s in evidence.doc["samples"] if s["predicted"] != s["label"]}
    data = load_dataset("digits")
    spare = [i for i in range(500) if i not in evidence.doc["dataset"]["indices"]]
    swap = dict(zip(sorted(wrong), spare, strict=False))
    samples = []
    for sample in evidence.doc["samples"]:
        i = swap.get(sample["id"], sample["id"])
        samples.append({**sample, "id": i, "label": data[i][1]})
        if i in swap.values():
            samples[-1]["predicted"] = (data[i][1] + 1) % 10
    indices = sorted(sample["id"] for sample in samples)
    dataset = {**evidence.doc["dataset"], "indices": indices, "digest": pixel_digest(data, indices)}
    forged = rebuilt(evidence, samples, dataset=dataset)
    forged.save(folder / "evidence" / f"{STEM}.json")
    write_card(folder, forged)
    report = run(folder)
    assert report.outcome == "not comparable" and "subset" in report.claims[0].differences


def test_a_flipped_byte_in_the_weights_is_refused_with_both_hashes(folder):
    expected = evidence_of(folder).doc["model"]["sha256"]
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RobustzooError) as caught:
        run(folder)
    hashes = set(re.findall("[0-9a-f]{64}", str(caught.value)))
    assert len(hashes) == 2 and expected in hashes


def test_weights_other_than_the_locked_ones_are_refused(published):
    with pytest.raises(RobustzooError):
        run(published, sha256="0" * 64)


def test_without_witnesses_replay_is_inconclusive_and_says_by_how_much(folder):
    (folder / "evidence" / f"{STEM}.witness.safetensors").unlink()
    report = run(folder)
    assert (report.outcome, report.exit_code) == ("inconclusive", 3)
    assert report.parts == {"clean": "holds", "upper": "not tested", "lower": "not tested"}
    counts = evidence_of(folder).doc["counts"]
    short = counts["clean_correct"] - counts["robust_correct"] - TOLERANCE
    assert f"{short} more witnesses would be needed" in report.text()
    assert "is missing, so replay cannot test how many images are robust" in report.text()
    assert run(folder, "full", same_seed=True).outcome == "confirmed"


def test_a_short_witness_file_weakens_replay(folder):
    witnesses = witnesses_of(folder)
    store_witnesses(folder, evidence_of(folder), keep(witnesses, slice(TOLERANCE, None)))
    assert run(folder).outcome == "consistent"
    store_witnesses(folder, evidence_of(folder), keep(witnesses, slice(TOLERANCE + 1, None)))
    report = run(folder)
    assert report.outcome == "inconclusive" and "1 more witness would be needed" in report.text()


def damaged(witnesses: Witnesses, how: str) -> Witnesses:
    pixels, ids, margins = witnesses.pixels.copy(), witnesses.ids.copy(), witnesses.margins.copy()
    if how == "outside":
        pixels[:, 0, 0, 0] = np.where(pixels[:, 0, 0, 0] < 0.5, 1.0, 0.0)
    elif how == "other images":
        ids += 1000
    elif how == "other shape":
        pixels = pixels[:, :, :4]
    elif how == "do not fool":
        # Each point belongs to another image of the same class now, so it is outside the ball of most; use
        # the clean images themselves, which are inside and classified correctly.
        from robustzoo.data import load_dataset

        data = load_dataset("digits")
        pixels = np.stack([data[int(i)][0].numpy() for i in ids])
    return Witnesses(ids, np.ascontiguousarray(pixels), margins)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("outside", "are outside linf:1/40"),
        ("other images", "not about images of this subset"),
        ("other shape", "not about images of this subset"),
        ("do not fool", "do not fool the model and prove nothing"),
    ],
)
def test_witnesses_that_prove_nothing_never_count(folder, how, words):
    witnesses = witnesses_of(folder)
    store_witnesses(folder, evidence_of(folder), damaged(witnesses, how))
    report = run(folder)
    assert report.outcome == "inconclusive" and report.numbers["witnesses_valid"] == 0
    assert words in report.text() and f"{len(witnesses)} of {len(witnesses)} witnesses" in report.text()


def test_a_borderline_witness_is_unreplayable_never_a_refutation(folder):
    witnesses = damaged(witnesses_of(folder), "do not fool")
    margins = np.full_like(witnesses.margins, 5e-5)
    store_witnesses(folder, evidence_of(folder), Witnesses(witnesses.ids, witnesses.pixels, margins))
    report = run(folder)
    assert report.outcome == "inconclusive" and "unreplayable on this machine" in report.text()


def exchanged(path: Path) -> None:
    keep(Witnesses.load(path), slice(1, None)).save(path)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


@pytest.mark.parametrize("mode", ["replay", "full"])
@pytest.mark.parametrize("damage", [exchanged, flipped, truncated])
def test_another_witness_file_than_the_evidences_is_refused_with_both_hashes(folder, damage, mode):
    expected = evidence_of(folder).doc["witnesses"]["sha256"]
    damage(folder / "evidence" / f"{STEM}.witness.safetensors")
    with pytest.raises(RobustzooError, match="restore the witness file") as caught:
        run(folder, mode)
    hashes = set(re.findall("[0-9a-f]{64}", str(caught.value)))
    assert len(hashes) == 2 and expected in hashes


def test_a_claim_within_the_tolerance_of_nothing_is_never_told_in_negative_images(folder):
    evidence = evidence_of(folder)
    kept = evidence.doc["counts"]["robust_correct"] - 1
    few, ids = robuster(evidence, -kept)
    assert few.doc["counts"]["robust_correct"] == 1 and len(ids) == kept
    witnesses = witnesses_of(folder)
    store_witnesses(folder, few, witnesses)
    write_card(folder, few)
    report = run(folder)
    assert report.claims[0].reasons["lower"] == "claimed 1, tolerance 3: nothing to test"
    assert "-" not in report.claims[0].reasons["upper"]


def test_an_evidence_without_a_broken_image_needs_no_witnesses(folder):
    evidence = evidence_of(folder)
    none, _ = robuster(evidence, sum(evidence.doc["counts"]["broken_by"].values()))
    none.save(folder / "evidence" / f"{STEM}.json")
    write_card(folder, none)
    report = run(folder)
    assert report.outcome == "consistent" and not report.claims[0].notes
    assert "witness file" not in report.text()


def test_another_fingerprint_is_named(folder):
    evidence = evidence_of(folder)
    evidence.doc["run"]["fingerprint"]["torch"] = "1.0"
    evidence.save(folder / "evidence" / f"{STEM}.json")
    report = run(folder)
    assert report.outcome == "consistent" and "torch 1.0 -> " in report.text()


def test_every_claim_of_a_card_is_checked_and_the_gravest_decides(folder):
    first = evidence_of(folder)
    second = robuster(first, 0)[0]
    second.doc["threat_model"]["epsilon"] = "1/50"
    text = render_card(recipe(NAME), [first, second], first.doc["model"]["sha256"], "apache-2.0")
    (folder / "README.md").write_text(text)
    report = run(folder)
    assert [claim.outcome for claim in report.claims] == ["consistent", "not comparable"]
    assert (report.outcome, report.exit_code) == ("not comparable", 4)


def test_evidence_on_other_data_needs_those_data(folder):
    evidence = evidence_of(folder)
    evidence.doc["dataset"]["id"] = "/etc"
    evidence.save(folder / "evidence" / f"{STEM}.json")
    write_card(folder, evidence)
    with pytest.raises(RobustzooError, match="pass the images as data="):
        run(folder)
    assert run(folder, data="digits").outcome == "consistent"


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "quick"},
        {"require": "consistent"},
        {"seed": 1, "same_seed": True},
        {"seed": -1},
        {"seed": 0.5},
        {"tolerance": -1},
        {"tolerance": 1.5},
        {"tolerance": 4},
        {"seed": 1},
        {"workers": 0},
        {"workers": None},
        {"log": "."},
        {"log": "absent/log.jsonl"},
    ],
    ids=str,
)
def test_arguments_that_mean_nothing_are_refused(published, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RobustzooError, match=next(iter(options))):
        verify(published, progress=False, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, r"(?s)no card.*Next: write it.*`robustzoo card .*--card FILE"),
        (b"# A model\n", "robustzoo evaluate"),
        (b"\xff\xfe\x00", r"(?s)card.md cannot be read as UTF-8.*Next: restore it"),
    ],
)
def test_what_is_no_card_is_refused(published, tmp_path, content, words):
    card = tmp_path / "card.md"
    if content is not None:
        card.write_bytes(content)
    with pytest.raises(CardError, match=words):
        run(published, card=card)


def test_a_folder_without_good_evidence_is_refused(folder, tmp_path):
    (folder / "evidence" / f"{STEM}.json").write_text("{}")
    with pytest.raises(EvidenceError):
        run(folder)
    shutil.rmtree(folder / "evidence")
    with pytest.raises(RobustzooError, match="holds no Evidence"):
        run(folder)
    with pytest.raises(CardError, match="no card"):
        run(tmp_path / "nowhere")


@pytest.mark.parametrize("mode", ["replay", "spot", "full"])
def test_a_model_that_is_another_one_for_large_batches_is_refused_in_every_mode(published, monkeypatch, mode):
    honest = PixelModel.forward

    def centring(self, x):
        z = honest(self, x)
        return z - z.mean(0) if len(x) > 4 else z

    monkeypatch.setattr(PixelModel, "forward", centring)
    with pytest.raises(RobustzooError, match=r"in a batch of 64, the micro-batch of this run"):
        run(published, mode)


def test_a_witness_file_of_another_size_is_refused_before_it_is_hashed(folder):
    with (folder / "evidence" / f"{STEM}.witness.safetensors").open("r+b") as file:
        file.truncate(2**40)  # takes no room, and would take an hour to hash
    with pytest.raises(RobustzooError, match=r"1,099,511,627,776 bytes, and .* witnesses have at most"):
        run(folder)
