"""`verify --record`: who checked, beside the weights, and what listings make of it."""

from __future__ import annotations

import json
import shutil

from click.testing import CliRunner

from robustzoo.cards.evidence import Evidence
from robustzoo.cards.holdings import main_evidence
from robustzoo.cli import group
from robustzoo.registry import entry
from robustzoo.verification.records import read_records

NAME = "vit_micro2.digits_linf.at_base"


def test_a_record_is_written_and_read_and_another_models_is_not(tmp_path):
    weights, folder = entry(NAME).weights, tmp_path / "m"
    shutil.copytree(weights.folder, folder)
    refused = CliRunner().invoke(group, ["verify", str(folder), "--record", "../ada"])
    assert refused.exit_code != 0 and "expected up to 64 letters" in str(refused.exception)
    done = CliRunner().invoke(group, ["verify", str(folder), "--record", "ada"])
    assert done.exit_code == 0, done.output
    (file,) = (folder / "verified").iterdir()
    document = json.loads(file.read_text())
    assert file.name == f"{document['date']}-ada.json" and document["versions"]["torch"]
    (found,) = read_records(folder, weights.sha256)
    assert (found.who, found.mode, found.outcome) == ("ada", "replay", "consistent")
    assert read_records(folder, "0" * 64) == ()
    # It is about the claims that were checked, and not about what the folder may say later.
    evidence = main_evidence(folder)
    assert found.is_about(evidence)
    counts = evidence.doc["counts"] | {"robust_correct": evidence.doc["counts"]["robust_correct"] + 1}
    assert not found.is_about(Evidence(evidence.doc | {"counts": counts}))
    refused = CliRunner().invoke(group, ["verify", str(folder), "--record", "ada", "--card", "other.md"])
    assert refused.exit_code == 2 and "the folder's own card" in refused.output
    for text in (
        "{",
        "[]",
        "{}",
        json.dumps({**document, "who": "x y"}),
        json.dumps({**document, "date": 3}),
    ):
        file.write_text(text)
        assert read_records(folder, weights.sha256) == ()
