"""What the perturbations of an Evidence look like: clean image, fooling point and their difference."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.witnesses import Witnesses
from robustzoo.data import ImageDataset
from robustzoo.evaluation.witnessing import inside


@dataclass(frozen=True, eq=False)
class Picture:
    """One broken image. witness, clean: float32 (C, H, W) in [0, 1]; clean is None where it cannot be had."""

    id: int
    label: int
    attack: str
    witness: np.ndarray
    clean: np.ndarray | None

    @property
    def distance(self) -> dict[str, float] | None:
        """Linf and L2 norm of the perturbation in pixel units; None without the clean image."""
        if self.clean is None:
            return None
        delta = (self.witness - self.clean).astype(np.float64)
        return {"linf": float(np.abs(delta).max()), "l2": float(np.sqrt((delta**2).sum()))}


def choose_pictures(
    evidence: Evidence, path: Path, dataset: ImageDataset | None, count: int
) -> tuple[list[Picture], str | None]:
    """Up to `count` broken images, spread over those that have a witness, and what a reader must know.

    Args:
        path: the Evidence's file; its witnesses lie beside it.
        dataset: where the clean images are; None shows the witnesses alone.

    Returns:
        the pictures, and a note where something is missing (None otherwise).

    Raises:
        WitnessError: the witness file is not the Evidence's.
    """
    stated = evidence.doc["witnesses"]
    if stated is None or not path.with_name(stated["file"]).is_file():
        missing = "no witnesses are stored" if stated is None else f"{stated['file']} is missing"
        return [], f"{missing}, so there are no pictures of perturbations"
    witnesses = Witnesses.load(path.with_name(stated["file"]), stated["sha256"], stated["count"])
    broken = {v.id: v for v in evidence.verdicts if v.broken_by is not None}
    rows = [row for row, i in enumerate(witnesses.ids) if int(i) in broken]
    picked = [rows[i] for i in np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(int))]
    pictures, strange = [], 0
    for row in picked:
        verdict = broken[int(witnesses.ids[row])]
        witness = witnesses.points([row])[0]
        clean = None if dataset is None else _clean(dataset, verdict.id, verdict.label)
        if clean is not None and not _near(witness, clean, evidence):
            clean, strange = None, strange + 1
        pictures.append(Picture(verdict.id, verdict.label, verdict.broken_by.attack, witness, clean))
    note = None
    if strange:
        note = f"{strange} witnesses are not within {evidence.threat_model} of the images given: other data?"
    elif dataset is None and pictures:
        note = "the clean images cannot be read here, so the fooling points are shown alone"
    return pictures, note


def _clean(dataset: ImageDataset, position: int, label: int) -> np.ndarray | None:
    """The image at a position, where there is one with this label."""
    if position >= len(dataset):
        return None
    x, found = dataset[position]
    return x.numpy() if int(found) == label else None


def _near(witness: np.ndarray, clean: np.ndarray, evidence: Evidence) -> bool:
    if witness.shape != clean.shape:
        return False
    pair = (torch.from_numpy(part.copy())[None] for part in (witness, clean))
    return bool(inside(*pair, evidence.threat_model)[0])
