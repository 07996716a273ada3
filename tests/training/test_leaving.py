"""How the programs end: export.py at once where nothing can be exported, both without a last search."""

from __future__ import annotations

import gc
import json

import pytest

from robustzoo.training.leaving import leave
from robustzoo.training.run_folder import SCHEMA, RunFolder
from tests.training.small import ROOT
from tests.training.test_usage import run


def test_what_was_loaded_is_left_out_of_the_last_search():
    before = gc.get_freeze_count()
    try:
        with pytest.raises(SystemExit) as left:
            leave(3)
        assert left.value.code == 3 and gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere is not a run folder: it has no config.json; give the --out of a run"),
        (["begun"], "begun has no checkpoint; train first, or continue with --resume"),
        (["trained", "--best"], "trained has no validation yet, and so no best checkpoint; train on"),
        (["trained", "--bset"], "unrecognized arguments: --bset"),
    ],
)
def test_export_refuses_before_torch_is_loaded(subprocess_environment, tmp_path, arguments, words):
    for name in ("begun", "trained"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(
            json.dumps({"schema": SCHEMA, "fixed": {}, "recipe": {}})
        )
    trained = RunFolder(tmp_path / "trained")
    trained.writing(2).mkdir(parents=True)
    trained.commit(2)
    done = run(subprocess_environment, tmp_path, *arguments, program=ROOT / "training/export.py")
    assert (done.returncode, done.stdout) == (2, "") and words in done.stderr
    done = run(subprocess_environment, tmp_path, "trained", program=ROOT / "training/export.py")
    assert done.returncode == 1 and "import of torch halted" in done.stderr
