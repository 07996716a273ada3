"""From a trained and evaluated folder to a published model: the card, the copy, the lock entry."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from robustzoo import atomic_files
from robustzoo.cards.check import lint_card
from robustzoo.cards.claims import TERMS, CardError, Claim
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.evidence_rules import images_problem
from robustzoo.cards.head import ATTACKS, PERTURBATIONS, attacked_first
from robustzoo.cards.holdings import all_evidence, covers, evidence_files
from robustzoo.cards.imported import Imported, spdx
from robustzoo.cards.metadata import LARGEST_CARD
from robustzoo.cards.notes import NOTES, said_problem, split_notes, with_notes
from robustzoo.cards.render import render_card
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data import load_dataset
from robustzoo.data.datasets import WITHOUT_FILES
from robustzoo.data.image_dataset import SPLITS
from robustzoo.hub.files import LARGEST_CONFIG
from robustzoo.models.folder import CARD, ModelFolder, read_folder
from robustzoo.registry import entries, published
from robustzoo.registry.digests import sha256_file
from robustzoo.registry.entries import Entry, Weights, public_name
from robustzoo.reports.pictures import draw
from robustzoo.streams import one_line
from robustzoo.untrusted_files import read_text
from robustzoo.verification.comparable import data_differences, open_stated, protocol_difference

# Bundled models travel in the wheel (docs/decisions.md, "Lock entry").
MAX_BUNDLED_BYTES = 6_000_000
_PACKAGE = Path(__file__).resolve().parents[1]


def card_text(
    folder: str | PathLike[str],
    name: str | None = None,
    *,
    license: str | None = None,
    notes: str | None = None,
) -> str:
    """The card of a model folder, from its recipe and all its evidence, with the notes of its present card.

    Args:
        name: what to call the model; default: the recipe's name, with the weights' hash where that name
            stands for other weights.
        license: of the weights; default: what the folder's config.json says.
        notes: by the author; default: those of the card that is there.

    Raises:
        CardError: no evidence in the folder, evidence of other weights, or of other images than it names,
            or a card that fails the lint.
        WitnessError: a witness file that is not the one its evidence names.
    """
    opened = ModelFolder.of(folder)
    folder, config = opened.path, opened.config
    described, license = config.recipe, license or config.license
    if isinstance(described, Imported):
        described = replace(described, license=license)
    card = folder / CARD
    if card.exists() and not card.is_file():
        raise CardError(f"{card} is not a file, so no card can be written there; move it away")
    documents = all_evidence(folder)
    if not documents:
        raise CardError(
            f"{folder}: no evidence in {folder / 'evidence'}, so there is nothing to claim; "
            f"run `robustzoo evaluate {folder}` first"
        )
    _refuse_repeated(folder)
    sha256 = opened.sha256
    for evidence in documents:
        if evidence.doc["model"]["sha256"] != sha256:
            raise CardError(
                f"{folder}: the {evidence.doc['protocol']['name']} evidence is about weights "
                f"{evidence.doc['model']['sha256']}, the folder holds {sha256}; delete that file from "
                f"{folder / 'evidence'} and run `robustzoo evaluate {folder}` again"
            )
        other = protocol_difference(evidence)
        if other is not None:
            raise CardError(
                f"{folder}: the {evidence.doc['protocol']['name']} evidence is of another protocol than the "
                f"one of that name in this version (digest {other[0]}, here {other[1]}), so nobody could "
                f"verify the claim; delete that file from {folder / 'evidence'} and run "
                f"`robustzoo evaluate {folder}` again"
            )
        _check_images(folder, evidence)
    _check_witnesses(folder)
    name = name or public_name(described.name, sha256)
    text = render_card(described, documents, sha256, license, name=name)
    text = with_notes(text, _notes(card) if notes is None else notes)
    problems = lint_card(text, recipe=described, evidence=documents)
    if problems:
        raise CardError(
            f"{folder}: the card does not pass the lint. Mend what it names in the folder's evidence or in "
            "the author's notes, and report this if it stays:\n- " + "\n- ".join(problems)
        )
    return text


def generated(
    folder: str | PathLike[str],
    name: str | None = None,
    *,
    data_root: str | Path | None = None,
    **stated: str | None,
) -> dict[str, bytes]:
    """Path in the folder -> content: the card and its pictures.

    Args:
        data_root: of the images, to be drawn beside the points that fool the model.
        name, stated: as of `card_text`.

    Raises: CardError, WitnessError as `card_text`.
    """
    opened = ModelFolder.of(folder)
    text = card_text(opened, name, **stated)
    documents = all_evidence(opened)
    main, images = attacked_first(documents), None
    if main is not None and (data_root is not None or main.doc["dataset"]["id"] in WITHOUT_FILES):
        images = open_stated(main, None, data_root)
    return {CARD: text.encode(), **draw(opened.path, documents, images)}


def write_card(
    folder: str | Path,
    *,
    licence: str | None = None,
    said: Mapping[str, str] | None = None,
    data_root: str | Path | None = None,
) -> Path:
    """Write the card of a model folder as its README.md, and the pictures that it shows.

    Args:
        data_root: of the images, where they need files.
        licence: of the weights, as their author gives it: an SPDX identifier, kept in config.json in lower
            case. None: as the folder has it.
        said: "author", "contact", "citation" -> text, which stand in the author's notes, in place of what was
            said of them before.

    Raises:
        RobustzooError: as `card_text`, no such licence, or what was said is empty or looks like a part of
            the card; nothing is changed then.
    """
    opened = ModelFolder.of(folder)
    path = opened.path / CARD
    licence = None if licence is None else spdx(licence)
    notes = _notes(path)
    for key, text in (said or {}).items():
        if (problem := said_problem(text)) is not None:
            raise CardError(f"--{key} {one_line(repr(text)[:100])} {problem}")
        notes = _with_line(notes, key, text)
    files = generated(opened, license=licence, notes=notes, data_root=data_root)
    if licence is not None and licence != opened.config.license:
        config = opened.path / "config.json"
        document = json.loads(read_text(config, LARGEST_CONFIG))
        places = [document.get("pretrained_cfg"), document["robustzoo"].get("imported")]
        for place in filter(None, places):  # timm's part, and what is said of weights that others trained
            place["license"] = licence
        atomic_files.write_text(config, json.dumps(document, indent=2, allow_nan=False) + "\n")
    for place, content in reversed(files.items()):  # the card last: it shows the others
        atomic_files.write_bytes(opened.path / place, content)
    return path


def _with_line(notes: str, key: str, text: str) -> str:
    """The notes with one line `- Author: text` for a key, whatever it said before."""
    start = f"- {key.capitalize()}: "
    heading, *lines = notes.splitlines() or [NOTES, ""]
    kept = [line for line in lines if not line.startswith(start)]
    while kept and not kept[0].strip():
        kept = kept[1:]
    return "\n".join([heading, "", f"{start}{' '.join(text.split())}", *kept]) + "\n"


def printed(card: str, place: str) -> str:
    """A card that is kept elsewhere than in its folder, with its pictures at `place`."""
    for picture in (ATTACKS, PERTURBATIONS):
        card = card.replace(f"]({picture})", f"]({place}/{picture})")
    return card


def card_folder() -> Path:
    """Where the cards of published models are kept; a folder in a checkout alone."""
    return _PACKAGE.parent / "model_cards"


def publish_bundled(folder: str | Path) -> Entry:
    """Copy a folder with its evidence and card into the package of this checkout, and lock its weights.

    Raises:
        CardError: a recipe that was changed (it has no registry name), evidence that says less than what is
            published now, too many bytes, a folder of the checkout in which nothing can be written, or as
            `card_text`.
        OSError: a file could not be written after all; card, lock and folder are those of before.
    """
    opened = ModelFolder.of(folder)
    folder, recipe = opened.path, opened.config.recipe
    if isinstance(recipe, Imported):
        raise CardError(
            f"{recipe.name} was imported, and is bundled under no registry name; share the folder as it is: "
            "robustzoo.load loads it"
        )
    if recipe.name != recipe.base_name:
        raise CardError(
            f"{recipe.name} is a changed recipe and has no registry name; it cannot be published under one. "
            f"Train {recipe.base_name} unchanged, or share the folder as it is: robustzoo.load loads it"
        )
    cards = card_folder()
    if not cards.is_dir():
        raise CardError(f"{_PACKAGE} is not inside a checkout of robustzoo (no {cards}); publish from one")
    read_folder(opened)  # the weights load, and give the logits they were written with
    target = _PACKAGE / "bundled" / recipe.name
    check_publishable(folder, target, recipe.dataset)
    made = generated(opened, recipe.name)
    files = files_to_publish(folder)
    size = sum(path.stat().st_size for path in files) + sum(map(len, made.values()))
    if size > MAX_BUNDLED_BYTES:
        raise CardError(
            f"{folder}: {size:,} bytes; bundled models have at most {MAX_BUNDLED_BYTES:,}. "
            f"Larger ones belong on the Hub: robustzoo publish {folder} --repo OWNER/NAME"
        )
    card = cards / f"{recipe.name}.md"
    others = [other for other in published() if other.name != recipe.name]
    for place in (target.parent, cards, entries.LOCK_FILE.parent):
        if (reason := atomic_files.why_unwritable(place)) is not None:
            raise CardError(f"{folder} cannot be published here, and nothing was changed: {reason}")
    with atomic_files.staging_folder(target) as staging:
        for path in files:
            copy = staging / path.relative_to(folder)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
        for place, content in made.items():
            atomic_files.write_bytes(staging / place, content)
        weights = staging / "model.safetensors"
        pin = Weights("bundled", recipe.name, None, None, sha256_file(weights), weights.stat().st_size)
        item = Entry(recipe.name, recipe, pin)
        text = printed(made[CARD].decode(), f"../robustzoo/bundled/{recipe.name}")
        _put_in_place(staging, target, card, text, [item, *others])
    return item


def _put_in_place(staging: Path, target: Path, card: Path, text: str, locked: list[Entry]) -> None:
    """Write the card and the lock, then the folder: all three, or after an error what was there before."""
    before = {path: path.read_bytes() if path.exists() else None for path in (card, entries.LOCK_FILE)}
    try:
        atomic_files.write_text(card, text)
        entries.write_lock(locked)
        atomic_files.replace_folder(staging, target)
    except BaseException:
        if staging.exists():  # else the new folder is in place, and only the old one's removal failed
            for path, content in before.items():
                if content is None:
                    path.unlink(missing_ok=True)
                elif path.read_bytes() != content:
                    atomic_files.write_bytes(path, content)
        raise


def _check_images(folder: Path, evidence: Evidence) -> None:
    """Raise CardError for Evidence that carries a catalog dataset's name and is not about its images."""
    doc = evidence.doc
    key, split = doc["dataset"]["id"], doc["dataset"]["split"]
    problem = images_problem(doc)
    if problem is None and key in WITHOUT_FILES and split in SPLITS:
        found = data_differences(evidence, load_dataset(key, split=split), [])
        problem = "; ".join(
            f"its {name}: {there}, {key} {split}: {here}" for name, (there, here) in found.items()
        )
    if problem:
        raise CardError(
            f"{folder}: the {doc['protocol']['name']} evidence is not about the images that it names: "
            f"{problem}. Move that file out of {folder / 'evidence'} and run `robustzoo evaluate {folder}` "
            "again"
        )


def check_publishable(folder: Path, target: Path | None, dataset: str | None) -> None:
    """Raise CardError where people could not verify what is published, or where it would say less of the
    model than what is there: under each threat model all images of before, and attacks as strong.

    Args:
        target: the folder that is published now, if any. dataset: of the recipe; None: other images may be
            spoken of, under names of their own.
    """
    documents = all_evidence(folder)
    for evidence in documents:
        key, split = evidence.doc["dataset"]["id"], evidence.doc["dataset"]["split"]
        if dataset is not None and (key, split) != (dataset, "test"):
            raise CardError(
                f"{folder}: the {evidence.doc['protocol']['name']} evidence is about {key} {split}; what is "
                f"published is about {dataset} test alone. Move that file out of {folder / 'evidence'}"
            )
    if target is not None:
        refuse_less(folder, documents, all_evidence(target), f"delete {target / 'evidence'} first")


def refuse_less(
    folder: Path, documents: Sequence[Evidence], before: Sequence[Evidence], where_wrong: str
) -> None:
    """Raise CardError where something of what is published now is not covered by what a folder holds.

    where_wrong: what to do if it was wrong, in words.
    """
    for old in before:
        if not any(covers(new, old) for new in documents):
            raise CardError(
                f"{folder}: publishing would replace {_measured(old)} by less: "
                f"{', '.join(map(_measured, documents)) or 'nothing'}. Expected the same images (or more) "
                f"and the same attacks (or aa-standard): run `robustzoo evaluate {folder}` so, or "
                f"{where_wrong} if it was wrong"
            )


def _measured(evidence: Evidence) -> str:
    doc = evidence.doc
    return (
        f"{doc['protocol']['name']} at {evidence.threat_model} on {doc['counts']['n']} images "
        f"({doc['dataset']['subset']})"
    )


def _check_witnesses(folder: Path) -> None:
    """Read what witness files are there. Raises WitnessError where one is not what its evidence says."""
    for path in evidence_files(folder):
        doc = Evidence.load(path).doc
        stated, shape = doc["witnesses"], doc["dataset"]["image_shape"]
        if stated is not None and path.with_name(stated["file"]).is_file():
            Witnesses.load(path.with_name(stated["file"]), stated["sha256"], stated["count"], shape)


def _refuse_repeated(folder: Path) -> None:
    """Two evidence files of one claim, such as a copy: which of them the card states would be chance."""
    files: dict[tuple, str] = {}
    for path in evidence_files(folder):
        claim = Claim.from_evidence(Evidence.load(path))
        terms = tuple(getattr(claim, name) for name in TERMS)
        other = files.setdefault(terms, path.name)
        if other != path.name:
            raise CardError(
                f"{folder / 'evidence'}: {other} and {path.name} are both about {claim.threat_model}, "
                f"{claim.protocol} on {claim.subset}; remove one of them"
            )


def _notes(card: Path) -> str:
    """The notes by the author in a card that is there already."""
    if not card.is_file():
        return ""
    try:
        return split_notes(read_text(card, LARGEST_CARD))[1]
    except (OSError, UnicodeDecodeError) as error:
        raise CardError(
            f"{card}: the card that is there cannot be read ({error}); move it away, then write it anew"
        ) from error


def files_to_publish(folder: Path) -> list[Path]:
    """Weights, config, and all evidence with its witnesses: what the card speaks of."""
    files = [folder / "model.safetensors", folder / "config.json"]
    for path in evidence_files(folder):
        files.append(path)
        witnesses = Evidence.load(path).doc["witnesses"]
        if witnesses is not None:
            files.append(path.parent / witnesses["file"])
    for path in files:
        if not path.is_file():
            raise CardError(f"{path} is missing; run `robustzoo evaluate {folder}` again to write it")
    return files
