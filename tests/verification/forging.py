"""Forge a model folder: card, Evidence and witnesses that say more images are robust than are."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robustzoo.cards import Evidence, Witnesses, render_card
from robustzoo.models import read_recipe

_SECTIONS = ("model", "protocol", "dataset", "seed", "micro_batch_size", "passes", "run")


def forge_folder(folder: Path, shift: int, *, keep_evidence: bool = False) -> None:
    """Call `shift` broken images robust: in the card, and (unless it is kept) in Evidence and witnesses."""
    (path,) = (folder / "evidence").glob("*.json")
    true = Evidence.load(path)
    samples = [dict(sample) for sample in true.doc["samples"]]
    chosen = [sample for sample in samples if sample["broken_by"] is not None][:shift]
    for sample in chosen:
        sample.update(robust=True, broken_by=None)
    forged = Evidence.build(
        threat_model=true.threat_model, samples=samples, **{name: true.doc[name] for name in _SECTIONS}
    )
    if not keep_evidence:
        file = path.with_name(true.doc["witnesses"]["file"])
        witnesses = Witnesses.load(file)
        kept = ~np.isin(witnesses.ids, [sample["id"] for sample in chosen])
        cut = Witnesses(witnesses.ids[kept], witnesses.pixels[kept], witnesses.margins[kept])
        sha256 = cut.save(file)
        forged.doc["witnesses"] = {"file": file.name, "sha256": sha256, "count": len(cut)}
        forged.save(path)
    text = render_card(read_recipe(folder), forged, forged.doc["model"]["sha256"], "apache-2.0")
    (folder / "README.md").write_text(text, encoding="utf-8")
