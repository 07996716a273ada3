"""The card says a sign of gradient masking that its evidence shows, and nothing where there is none."""

from __future__ import annotations

import copy
from importlib.resources import files
from pathlib import Path

from robustzoo.cards import Evidence
from robustzoo.cards.passages import measured_on
from robustzoo.cards.signs import masking_signs


def test_zero_gradients_stand_in_the_card():
    folder = Path(str(files("robustzoo"))) / "bundled" / "vit_micro2.digits_linf.at_base"
    (path,) = folder.glob("evidence/*.json")
    evidence = Evidence.load(path)
    assert masking_signs(evidence) == []
    assert measured_on(evidence) in (folder / "README.md").read_text(encoding="utf-8")
    doc = copy.deepcopy(evidence.doc)
    doc["run"]["zero_gradients"] = {"apgd-ce": 400}
    text = measured_on(Evidence(doc))
    assert "**A sign against this number**: gradient masking suspected" in text
    assert "apgd-ce on 400 of 491 images" in text
