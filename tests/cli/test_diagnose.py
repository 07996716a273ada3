"""`robustzoo diagnose`: what is printed and written, and what bad input gets."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys

import pytest
from click.testing import CliRunner
from PIL import Image

from robustzoo.cli import group
from robustzoo.cli.points import load_points
from robustzoo.data import load_dataset

MODEL = "vit_micro2.digits_linf.at_trh"
FEW = ("--n", "4", "--probes", "2")
FEWER = (*FEW, "--weights", "2")


def run(*arguments: str):
    return CliRunner().invoke(group, ["diagnose", *arguments], catch_exceptions=False)


REFUSED = [
    (("bound", "vit_micro2.digits_linf.at_thr"), f"Did you mean {MODEL}"),
    (("bound", "vit_l16.imagenet_linf.at_trh"), "no weights of vit_l16.imagenet_linf.at_trh"),
    (("bound", "nowhere/model"), "nowhere/model is not a folder"),
    (("hessian", "local-dir:nowhere"), "nowhere is not a folder"),
    (("bound", MODEL, "--data-root", "nowhere"), "digits come with a dependency"),
    (("bound", ".", "--data-root", "nowhere"), "--data-root nowhere: no such folder"),
    (("bound", MODEL, "--sigma0", "nan", "--beta", "1"), "'--sigma0': nan is not a finite number in"),
    (("bound", MODEL, "--lambda", "inf"), "'--lambda': inf is not a finite number in the range x>0"),
    (("bound", MODEL, "--gamma", "-1"), "'--gamma': -1.0 is not in the range x>0"),
    (("bound", MODEL, "--tau", "nan"), "'--tau': nan is not a finite number in the range 0<x<=1"),
    (("bound", MODEL, "--tau", "0"), "'--tau': 0.0 is not in the range 0<x<=1"),
    (("bound", MODEL, "--sub-gaussian", "inf"), "'--sub-gaussian': inf is not a finite number in the"),
    (("bound", MODEL, "--sigma0", "1"), "give --sigma0 together with --beta"),
    (("bound", MODEL, "--sigma0", "0.1", "--beta", "1", "--lambda", "1"), "not a mixture"),
    (("bound", MODEL, "--sigma0", "1e-200", "--beta", "1"), "sigma0_squared is 0"),
    (("bound", MODEL, "--sigma0", "0", "--beta", "1"), "'--sigma0': 0.0 is not in the range x>0"),
    (("hessian", MODEL, "--eigenvalues", "101"), "not in the range"),
    (("hessian", MODEL, "--out", "a.csv", "--spectrum", "a.csv"), "a file of its own"),
    (("bound", ".", "--lambda", "1e-200", "--gamma", "1e-200"), "leave beta no finite number"),
    (("bound", "vit_micro2.digits_linf.at_base"), "lambda is not set; the bound needs"),
    (("lambda-sweep", "--out", "x", "--lambdas", "1e-3;1e-2"), "'1e-3;1e-2' is no number; expected"),
    (
        ("lambda-sweep", "--out", "x", "--lambdas", ","),
        "'' is no number; expected finite numbers above 0",
    ),
    (("lambda-sweep", "--out", "x", "--lambdas", "1e-3,nan"), "lambda is nan; expected a finite number"),
    (("lambda-sweep", "--out", "x", "--lambdas=-1"), "lambda is -1; expected a finite number above 0"),
    (("lambda-sweep", "--out", "x", "--lambdas", "1,1"), "expected at least one, each once"),
    (("lambda-sweep", "--out", "x", "--losses", "at,foo"), "robustzoo: 'foo' is no loss; expected one"),
    (("lambda-sweep", "--out", "x", "--losses", "trade"), "Did you mean trades?"),
    (("lambda-sweep", "--out", "file/x"), "file is a file; choose another --out"),
    (("lambda-sweep", "--out", "full"), "full is not empty; continue its sweep with --resume"),
]


def test_what_the_options_alone_tell_is_refused_before_torch_is_loaded(tmp_path, without_torch):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    found = without_torch([("diagnose", *arguments) for arguments, _ in REFUSED])
    for (arguments, message), (code, out, said) in zip(REFUSED, found, strict=True):
        assert (code, out) == (2, "") and message in said, (arguments, said)
    assert sorted(tmp_path.rglob("*")) == before


def test_help_names_the_four_commands_without_torch():
    code = (
        "import sys; from click.testing import CliRunner; from robustzoo.cli import group; "
        "shown = CliRunner().invoke(group, ['diagnose', '--help']).output; "
        "assert all(name in shown for name in ('bound', 'hessian', 'two-moons', 'lambda-sweep')), shown; "
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bound_prints_every_term_and_what_is_unknown():
    shown = run("bound", MODEL, *FEWER).stdout
    assert "sigma0^2 0.02" in shown and "lambda 0.01" in shown and "gamma 0.0001" in shown
    assert "m = 1,147 images" in shown and "unknown" in shown and "states neither tau" in shown
    for name in ("case I ", "case II ", "The linear term holds (within 5 %) where every |x| is at most 0.1"):
        assert name in shown


def test_bound_json_adds_up():
    record = json.loads(
        run(
            "bound", MODEL, *FEWER, "--sigma0", "0.1", "--beta", "500", "--sub-gaussian", "2", "--json"
        ).stdout
    )
    assert record["lambda"] == pytest.approx(0.005) and record["gamma"] == pytest.approx(0.1)
    terms = record["robust_loss"] + record["norm_term"] + record["trace_term_top"]
    assert record["value_top"] == pytest.approx(terms)
    x = 0.01 * 500 * record["trace_all"] / record["weights_all"]
    assert record["x_mean_all"] == pytest.approx(x)
    assert record["case_1_all"] == pytest.approx(record["weights_all"] / 1000 * math.log1p(x))
    constants = record["confidence_term"] + record["moment_term"]
    assert record["total_top"] == pytest.approx(terms + constants)
    assert record["moment_term"] == pytest.approx(500 * 2 / (2 * 1147))


def test_bound_takes_lambda_and_gamma():
    record = json.loads(run("bound", MODEL, *FEWER, "--lambda", "0.5", "--gamma", "0.25", "--json").stdout)
    assert record["sigma0_squared"] == pytest.approx(1.0) and record["beta"] == pytest.approx(2.0)


def test_hessian_prints_and_writes_a_row_per_layer(tmp_path):
    out, spectrum = tmp_path / "table.csv", tmp_path / "spectrum.csv"
    shown = run("hessian", MODEL, *FEW, "--weights-only", "--eigenvalues", "0", "--out", str(out)).stdout
    assert "top-layer weight, closed form" in shown
    with out.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    layers = ["cls_token", "pos_embed", "patch_embed", *(f"blocks.{i}" for i in range(4)), "head", "all"]
    assert [row["layer"] for row in rows] == layers
    head = rows[-2]
    assert (head["parameters"], head["method"], head["standard_error"]) == ("640", "exact", "0")
    closed_form = float(shown.split("closed form: trace ")[1].split()[0])
    assert float(head["trace"]) == pytest.approx(closed_form, rel=1e-3)
    assert not spectrum.exists()


def test_two_moons_writes_tables_and_figures(tmp_path):
    options = ("--epochs", "1", "--seeds", "1", "--probes", "2", "--workers", "1")
    result = run("two-moons", "--out", str(tmp_path / "moons"), *options)
    assert "Standard" in result.stdout and "after epoch 1" in result.stdout
    header = (tmp_path / "moons" / "two_moons.csv").read_text().splitlines()[0]
    assert header == "setting,epoch,layer,trace,eigenvalue_std"
    assert len(list((tmp_path / "moons").glob("*.png"))) == 2


def test_two_moons_compares_batch_sizes(tmp_path):
    options = (
        "--epochs",
        "1",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--batch-size",
        "250",
        "--batch-size",
        "500",
    )
    shown = run("two-moons", "--out", str(tmp_path), *options).stdout
    assert "batch size 250  Standard" in shown and "batch size 500  Standard" in shown and "(1.00)" in shown
    with (tmp_path / "two_moons_batches.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["batch_size"], row["setting"]) for row in rows] == [
        (size, setting) for size in ("250", "500") for setting in ("Standard", "Top", "Full")
    ]


@pytest.fixture
def two_classes(tmp_path):
    """Digits 0 and 1 as files, 12 of each."""
    kept = {0: 0, 1: 0}
    for x, label in load_dataset("digits"):
        if kept.get(label, 12) < 12:
            place = tmp_path / "own" / str(label) / f"{kept[label]:02d}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((x[0] * 255).round().byte().numpy()).save(place)
            kept[label] += 1
    return tmp_path / "own"


@pytest.mark.parametrize("command", ["bound", "hessian"])
def test_images_of_ones_own_are_taken_as_by_evaluate(two_classes, command):
    options = FEWER if command == "bound" else (*FEW, "--eigenvalues", "0")
    result = run(command, MODEL, *options, "--data", f"folder:{two_classes}")
    assert "24 images of folder:own: taken as they are" in result.stderr and "1 = '1'" in result.stderr
    assert ("m = 24 images" if command == "bound" else "on 4 images") in result.stdout
    if command == "hessian":
        named = run(command, MODEL, *options, "--data", "digits")
        assert named.stdout == run(command, MODEL, *options).stdout


def test_a_few_images_of_class_folders_are_not_all_of_the_first_class(two_classes):
    chosen = {"data": f"folder:{two_classes}", "data_root": None}
    chosen |= dict.fromkeys(("resize", "crop", "interpolation", "classes"))
    _, points, total = load_points(MODEL, chosen, None, 12, 0)
    assert total == 24 and len(points.y) == 12 and set(points.y.tolist()) == {0, 1}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--data", "folder:{own}", "--split", "test"), "folder:own has no splits"),
        (("--data", "folder:{own}", "--data-root", "."), "expected one folder"),
        (("--data", "digit"), "Did you mean digits"),
        (("--resize", "9"), "how a folder of images is read"),
        (("--data", "folder:{own}", "--classes", "{own}/classes.txt"), "but the model has 10 outputs"),
    ],
)
def test_images_that_cannot_be_looked_at_are_refused(two_classes, options, message):
    (two_classes / "classes.txt").write_text("".join(f"{name}\n" for name in [0, *range(2, 12), 1]))
    command = ["diagnose", "hessian", MODEL, *(option.format(own=two_classes) for option in options)]
    result = CliRunner().invoke(group, command)
    assert result.exit_code != 0 and message in f"{result.output}{result.exception}"
