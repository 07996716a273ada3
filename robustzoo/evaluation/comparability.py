"""Comparable or not: whether a claim, its Evidence, the data here and this version speak of the same thing.

Differences are field -> (claimed, found); with any of them, the numbers are about different things.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustzoo.attacks.protocols import ProtocolError
from robustzoo.attacks.protocols import protocol as make_protocol
from robustzoo.cards.catalog_images import images_problem
from robustzoo.cards.claims import TERMS, Claim
from robustzoo.cards.evidence import Evidence
from robustzoo.data import ImageDataset, evaluation_subset, open_data, pixel_digest
from robustzoo.data.datasets import WITHOUT_FILES
from robustzoo.data.fitting import Fit
from robustzoo.data.sources import data_place
from robustzoo.evaluation.verification_report import VerificationError
from robustzoo.models.pixel_model import PixelModel
from robustzoo.registry.catalog import DATASETS, is_catalog_key


def card_differences(claim: Claim, evidence: Evidence, model: PixelModel) -> dict[str, tuple[Any, Any]]:
    """Terms in which the claim and its Evidence, the model, or this version's protocol differ."""
    doc = evidence.doc
    differences = claim.differences(Claim.from_evidence(evidence), ("model_name", *TERMS))
    if claim.model_name != model.name:
        differences["model_name"] = (claim.model_name, model.name)
    if doc["dataset"]["num_classes"] != model.head.out_features:
        differences["num_classes"] = (doc["dataset"]["num_classes"], model.head.out_features)
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
    """The images of the Evidence: `data` where it is given, else the catalog's dataset of that name.

    A folder's images are brought to size as the Evidence states it, or as all were before it stated that.

    Args:
        classes: a file of class names, for a folder: see `stated_order`.

    Raises:
        VerificationError: the Evidence is about other data than the catalog's, and `data` is None.
    """
    stated = evidence.doc["dataset"]
    catalogued = is_catalog_key(stated["id"])
    if data is None and not catalogued:
        raise VerificationError(
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
    return open_data(
        stated["id"] if data is None else data,
        data_root,
        split=stated["split"],
        num_classes=stated["num_classes"],
        fit=fit,
        channels=channels,
        classes=classes,
    )


def refuse_unread(data: Any, documents: Iterable[Evidence]) -> None:
    """Raise VerificationError where a folder is given, and all Evidence is about data without files."""
    stated = {evidence.doc["dataset"]["id"] for evidence in documents}
    if data is not None and _is_plain_folder(data) and stated <= WITHOUT_FILES:
        raise VerificationError(
            f"the folder {str(data)!r} would not be read: the card is about {', '.join(sorted(stated))}, "
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
