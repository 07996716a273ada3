"""`robustzoo plot`: which numbers are drawn, and folders without any."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from PIL import Image

from robustzoo.cli.train import curve, loss_terms, plot, read_log
from robustzoo.errors import RobustzooError

RECORDS = [
    {"step": 1, "total": 2.5, "robust": 2.4, "trace": 3.0, "trh": 0.1, "l2": 0.01, "learning_rate": 0.1},
    {"step": 2, "total": 2.2, "robust": 2.1, "trace": 2.0, "trh": 0.1, "l2": 0.01, "learning_rate": 0.1}
    | {"clean_accuracy": 0.5, "pgd10_accuracy": 0.25, "train_pgd10_accuracy": 0.5, "robust_gap": 0.25},
]


@pytest.fixture
def run(tmp_path):
    lines = [json.dumps(record) for record in RECORDS]
    strange = b'{"step": 2, "\xff": 1}\n'
    (tmp_path / "metrics.jsonl").write_bytes(strange + "\n".join([*lines, '{"step": 3, "to']).encode())
    (tmp_path / "config.json").write_text('{"recipe": {"base_name": "a.b.c"}}')
    return tmp_path


def test_what_is_drawn(run):
    records = read_log(run)
    assert records == RECORDS  # the line cut short is no record, nor is that of bytes that are no UTF-8
    assert loss_terms(records) == ["total", "robust", "trace", "trh", "l2"]
    assert curve(records, "robust") == ([1, 2], [2.4, 2.1])
    assert curve(records, "robust_gap") == ([2], [0.25])


@pytest.mark.parametrize("out", [None, "elsewhere/picture.png"])
def test_the_picture(run, out):
    path = run / ("curves.png" if out is None else out)
    done = CliRunner().invoke(plot, [str(run), *([] if out is None else ["--out", str(path)])])
    assert done.exit_code == 0 and f"{path}: 2 records, steps 1 to 2" in done.output
    with Image.open(path) as picture:
        assert picture.format == "PNG" and picture.width > 1000


def test_a_line_that_is_no_text_is_no_record(run):
    """As a crash of the machine can leave one."""
    with (run / "metrics.jsonl").open("ab") as log:
        log.write(b'\n{"step": 3, "total": \xff\xfe}\n')
    assert read_log(run) == RECORDS


def test_nothing_to_draw(tmp_path):
    with pytest.raises(RobustzooError, match=r"is no run folder.*give the --out of a training"):
        read_log(tmp_path)
    (tmp_path / "metrics.jsonl").touch()
    with pytest.raises(RobustzooError, match="has no record yet"):
        read_log(tmp_path)


def test_a_picture_under_another_ending_is_refused(run):
    done = CliRunner().invoke(plot, [str(run), "--out", str(run / "curves.jpg")])
    assert done.exit_code == 2 and "expected a name that ends in .png" in done.output
    assert not (run / "curves.jpg").exists()
