"""A few of the inputs of benchmarks/fuzz.py for each reader: no exception but our own classes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from robustzoo.errors import RobustzooError

PLACE = Path(__file__).resolve().parents[1] / "benchmarks" / "fuzz.py"


@pytest.fixture(scope="module")
def fuzz():
    spec = importlib.util.spec_from_file_location("fuzz", PLACE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def inputs(fuzz, tmp_path_factory):
    return fuzz.Inputs(tmp_path_factory.mktemp("fuzz"))


KINDS = """names threats overrides recipe_files lock_files zoo_lists journals witness_files evidence_files
cards configs headers import_files dataset_folders"""


@pytest.mark.parametrize("kind", KINDS.split())
def test_no_input_raises_a_foreign_exception(fuzz, inputs, kind):
    read = getattr(inputs, kind)
    for i in range(15):
        try:
            read(fuzz.Draw(f"{kind}-suite-{i}"))
        except Exception as error:
            if not type(error).__module__.startswith("robustzoo"):
                raise


def test_every_kind_is_tried(fuzz):
    assert KINDS.split() == fuzz.KINDS


def test_a_document_of_any_depth_is_refused_in_words(inputs):
    from robustzoo.registry.entries import read_lock

    path = inputs.place / "deep.json"
    path.write_text("[" * 10**5)
    with pytest.raises(RobustzooError, match="recursion"):
        read_lock(path)
