"""The programs in examples/, run on the bundled models."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))  # as `python examples/NAME.py` has it

import compare_models  # noqa: E402
import downstream  # noqa: E402
import jpeg_to_class  # noqa: E402
import linear_probe  # noqa: E402
import other_attacks  # noqa: E402


def test_from_jpeg_to_class(tmp_path, monkeypatch, capsys):
    right = []
    for i in range(5):
        label = jpeg_to_class.write_digit(tmp_path / "x.jpg", i)
        right.append(jpeg_to_class.classify(tmp_path / "x.jpg")[0][0] == str(label))
    assert sum(right) >= 4
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["jpeg_to_class.py"])
    runpy.run_path(str(EXAMPLES / "jpeg_to_class.py"), run_name="__main__")
    assert "wrote digit.jpg" in capsys.readouterr().out and (tmp_path / "digit.jpg").is_file()


def test_a_linear_probe_on_features():
    features, pixels = linear_probe.main()
    assert features > 0.9 and pixels > 0.8


def test_a_downstream_classifier_is_attacked():
    clean, robust = downstream.main(n=40)
    assert clean > 0.9 and 0.1 < robust <= clean


def test_two_models_are_compared():
    text = compare_models.main(n=20).text()
    assert "exact McNemar" in text and "at_trh" in text


@pytest.mark.parametrize("library", list(other_attacks.LIBRARIES))
def test_other_libraries_attack_a_pixel_model(library):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    assert 0.3 < other_attacks.main(library) <= 1
