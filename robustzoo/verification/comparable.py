"""What a model folder states, and whether claim, Evidence, data and this version speak of the same thing."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robustzoo.attacks.protocols import ProtocolError
from robustzoo.attacks.protocols import protocol as make_protocol
from robustzoo.cards.claims import TERMS, CardError, Claim
from robustzoo.cards.evidence import Evidence
from robustzoo.cards.evidence_rules import images_problem
from robustzoo.cards.holdings import evidence_documents
from robustzoo.cards.metadata import LARGEST_CARD
from robustzoo.cards.witnesses import Witnesses, most_bytes
from robustzoo.data import ImageDataset, evaluation_subset, open_data, pixel_digest
from robustzoo.data.class_names import labelled_as_stated
from robustzoo.data.datasets import WITHOUT_FILES
from robustzoo.data.fit import Fit
from robustzoo.data.sources import data_place
from robustzoo.errors import RobustzooError
from robustzoo.models.folder import ModelFolder, verify_sha256
from robustzoo.models.pixel_model import PixelModel
from robustzoo.registry.catalog import DATASETS, is_catalog_key
from robustzoo.untrusted_files import read_text
from robustzoo.verification.report import plural

_OTHER_WEIGHTS = (
    "put the published file back (a fresh copy of the model folder has it). Only if you changed the weights "
    "on purpose: they are another model, so write a folder of their own with "
    "robustzoo.models.write_folder(FOLDER, model, model.recipe), then `robustzoo evaluate` and `robustzoo "
    "card` that"
)


def card_text(folder: Path, card: str | Path | None) -> str:
    """The text of the card, the folder's own or another. Raises: CardError where there is none."""
    path = folder / "README.md" if card is None else Path(card)
    try:
        found = stat.S_ISREG(path.stat().st_mode)
    except PermissionError as error:
        raise CardError(
            f"the card {path} cannot be read ({error.strerror or error})",
            "give yourself the permission to read its folder, or take a copy that you may read",
        ) from error
    except (OSError, ValueError):  # a name that is too long, for example
        found = False
    if not found:
        raise CardError(
            f"there is no card at {path}, so nothing is claimed",
            f"write it from the folder's evidence with `robustzoo card {folder}` (without evidence: "
            f"`robustzoo evaluate {folder}` first), or give another one as card=..., on the command line "
            "--card FILE",
        )
    try:
        return read_text(path, LARGEST_CARD)
    except (OSError, UnicodeDecodeError) as error:
        raise CardError(
            f"the card {path} cannot be read as UTF-8 text: {getattr(error, 'strerror', None) or error}",
            f"restore it, or write it anew with `robustzoo card {folder}`",
        ) from error


@dataclass(frozen=True)
class Statement:
    """A claim of a card, with the Evidence of the folder that it comes from and that one's file."""

    claim: Claim
    evidence: Evidence
    path: Path


def read_statements(folder: Path, claims: Sequence[Claim]) -> tuple[list[Statement], int]:
    """Each claim with the Evidence that differs from it in the fewest terms, in none for an honest card; and
    how many of the folder's Evidence no claim comes from.

    Raises: RobustzooError for a folder without Evidence, EvidenceError.
    """
    documents = evidence_documents(folder)
    stated = []
    for claim in claims:
        pair = min(documents, key=lambda pair: len(claim.differences(Claim.from_evidence(pair[0]), TERMS)))
        stated.append(Statement(claim, *pair))
    return stated, len(documents) - len({one.path for one in stated})


def check_weights(opened: ModelFolder, named: Iterable[str | None]) -> str:
    """The SHA-256 of the weights, which must be every one that is named. Raises: RobustzooError."""
    for sha256 in named:
        if sha256 is not None:
            opened.require_sha256(sha256, next_step=_OTHER_WEIGHTS)
    return opened.sha256


def check_witness_file(one: Statement) -> None:
    """Refuse a witness file that is not the one of the Evidence; a missing one is noted later."""
    stated = one.evidence.doc["witnesses"]
    if stated is None or not (file := one.path.with_name(stated["file"])).is_file():
        return
    next_step = (
        "restore the witness file from a fresh copy of the model folder. Replay needs no more than the right "
        "file; without any, `--mode spot` or `full` attacks the model again"
    )
    most = most_bytes(stated["count"], one.evidence.doc["dataset"]["image_shape"])
    if (size := file.stat().st_size) > most:  # before it is hashed: minutes, of a sparse file
        raise RobustzooError(
            f"{file} has {size:,} bytes, and {plural(stated['count'], 'witness', 'es')} have at most "
            f"{most:,}; {next_step}"
        )
    verify_sha256(file, stated["sha256"], next_step=next_step)


def card_differences(one: Statement, model: PixelModel) -> dict[str, tuple[Any, Any]]:
    """Terms in which the claim and its Evidence, the model, or this version's protocol differ."""
    claim, evidence, doc = one.claim, one.evidence, one.evidence.doc
    differences = claim.differences(Claim.from_evidence(evidence), ("model_name", *TERMS))
    if claim.model_name != model.name:
        differences["model_name"] = (claim.model_name, model.name)
    if doc["dataset"]["num_classes"] != model.num_classes:
        differences["num_classes"] = (doc["dataset"]["num_classes"], model.num_classes)
    if (images := images_problem(doc)) is not None:
        differences["images"] = (f"{doc['dataset']['id']} {doc['dataset']['subset']}", images)
    if doc["model"]["sha256"] is None:
        differences["weights sha256"] = ("the weights in the folder", "not stated in the Evidence")
    if not differences and (other := protocol_difference(evidence)) is not None:
        differences["protocol of this version"] = other
    return differences


def protocol_difference(evidence: Evidence) -> tuple[str, str] | None:
    """(digest that is stated, digest that the protocol of that name has in this version, or why there is none
    here), None where they are the same."""
    stated, classes = evidence.doc["protocol"], evidence.doc["dataset"]["num_classes"]
    try:
        known = make_protocol(stated["name"], evidence.threat_model, classes).digest
    except ProtocolError as error:
        known = str(error)
    return None if known == stated["digest"] else (stated["digest"], known)


def open_stated(
    evidence: Evidence, data: Any, data_root: str | Path | None, classes: str | Path | None = None
) -> ImageDataset:
    """The images of the Evidence: `data` where it is given, else the catalog's dataset of that name, or the
    folder `data_root` of other images.

    A folder's images are brought to size as the Evidence states it, or as all were before it stated that.

    Args:
        classes: a file of class names, for a folder: see `stated_order`.

    Raises:
        RobustzooError: the Evidence is about other data than the catalog's, and `data` is None.
    """
    stated = evidence.doc["dataset"]
    catalogued = is_catalog_key(stated["id"])
    if data is None and data_root is not None and not catalogued:
        data, data_root = str(data_root), None  # a command without --data: the folder of one's own images
    if data is None and not catalogued:
        raise RobustzooError(
            f"the Evidence is about {stated['id']!r}, which is no dataset of the catalog "
            f"({', '.join(DATASETS)}): pass the images as data=..., on the command line --data DIR"
        )
    if catalogued and _is_plain_folder(data):
        # A folder of the dataset's files, as `evaluate` takes it; without files it is for other claims.
        data, data_root = stated["id"], None if stated["id"] in WITHOUT_FILES else data
    channels, height, width = stated["image_shape"]
    transform = stated.get("transform")
    fit = (
        replace(Fit.usual((height, width)), keeps_exact=False)
        if transform is None
        else Fit.from_json(transform)
    )
    dataset = open_data(
        stated["id"] if data is None else data,
        data_root,
        split=stated["split"],
        num_classes=stated["num_classes"],
        fit=fit,
        channels=channels,
        classes=classes,
    )
    return labelled_as_stated(dataset, stated.get("classes"))


def images_if_there(
    evidence: Evidence, data: Any = None, data_root: str | Path | None = None
) -> ImageDataset | None:
    """The images as of `open_stated`; None where they cannot be had and nobody has said where they are."""
    try:
        return open_stated(evidence, data, data_root)
    except RobustzooError:
        if data is not None or data_root is not None:
            raise
        return None


def refuse_unread(data: Any, documents: Iterable[Evidence]) -> None:
    """Raise RobustzooError where a folder is given, and all Evidence is about data without files."""
    names = {evidence.doc["dataset"]["id"] for evidence in documents}
    if data is not None and _is_plain_folder(data) and names <= WITHOUT_FILES:
        raise RobustzooError(
            f"the folder {str(data)!r} would not be read: the numbers are about {', '.join(sorted(names))}, "
            "which come with a dependency; leave the data away"
        )


def _is_plain_folder(data: Any) -> bool:
    """Whether it is a folder without the name of a dataset."""
    return isinstance(data, Path) or (isinstance(data, str) and data_place(data)[0] is None)


def data_differences(
    evidence: Evidence, dataset: ImageDataset, notes: list[str]
) -> dict[str, tuple[Any, Any]]:
    """Where the images here are not those of the Evidence, or are not the subset that its name says."""
    stated = evidence.doc["dataset"]
    indices, n = stated["indices"], len(stated["indices"])
    if indices[-1] >= len(dataset):
        return {"dataset size": (f"at least {indices[-1] + 1} images", f"{len(dataset)} images")}
    digest = pixel_digest(dataset, indices)
    if digest != stated["digest"]:
        return {"dataset digest": (stated["digest"], digest)}
    labels = [sample["label"] for sample in evidence.doc["samples"]]
    known = dataset.labels
    if labels != [dataset[i][1] if known is None else int(known[i]) for i in indices]:
        return {"labels": ("those in the Evidence", "those of the images")}
    if stated["subset"] == f"chosen{n}":
        notes.append(f"the {n} images were chosen by hand: their accuracy says nothing about the dataset's")
        return {}
    drawn = evaluation_subset(dataset, n)
    if (drawn.id, drawn.indices) != (stated["subset"], indices):
        return {
            "subset": (f"{stated['subset']}, ids {indices[:5]}...", f"{drawn.id}, ids {drawn.indices[:5]}...")
        }
    return {}


def load_witnesses(one: Statement, notes: list[str]) -> Witnesses | None:
    """The witness file, or None with a note that says what cannot be tested without it."""
    stated = one.evidence.doc["witnesses"]
    if stated is None:
        if one.evidence.doc["counts"]["broken_by"]:
            notes.append(
                "the Evidence names no witness file, so replay cannot show that any image was broken"
            )
        return None
    file = one.path.with_name(stated["file"])
    if not file.is_file():
        notes.append(
            f"the witness file {stated['file']} ({plural(stated['count'], 'witness', 'es')}) is missing, so "
            "replay cannot test how many images are robust: restore it, or use mode spot or full"
        )
        return None
    image_shape = one.evidence.doc["dataset"]["image_shape"]
    # `check_witness_file` has compared its hash
    return Witnesses.load(file, count=stated["count"], image_shape=image_shape)
