"""`robustzoo ls --paper`, and the paper's numbers in `recipe` and `show`."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
from click.testing import CliRunner

from robustzoo.cli import group
from robustzoo.registry.paper import cells, read_table


def run(*arguments: str):
    return CliRunner().invoke(group, list(arguments), catch_exceptions=False)


def test_json_has_every_cell_as_the_table_has_it():
    records = json.loads(run("ls", "--paper", "--json").stdout)
    assert len(records) == 120
    found = {
        tuple(str(r[k]) for k in ("architecture", "dataset", "norm", "eps", "loss", "defence"))
        for r in records
    }
    rows = read_table("results")
    assert found == {
        tuple(row[k] for k in ("arch", "dataset", "norm", "eps", "loss", "defence")) for row in rows
    }
    numbers = {r["name"]: (r["clean_percent"], r["aa_percent"]) for r in records}
    for row in rows:
        name = f"{row['arch']}.{row['dataset']}_{row['norm']}.{row['loss']}_{row['defence']}"
        assert numbers[name] == (float(row["clean_percent"]), float(row["aa_percent"]))
    assert {(r["dataset"], round(r["standard_error_percent"], 3)) for r in records} == {
        ("cifar10", 0.5),
        ("cifar100", 0.5),
        ("imagenet", 0.224),
    }
    assert [r["mark"] for r in records] == [cell.mark for cell in cells()]
    assert {r["aa_protocol"] for r in records} == {"apgd-ce+dlr"}


def test_the_grid_has_every_number_with_its_mark():
    shown = run("ls", "--paper").stdout
    signs = {"top": r"\*", "silver": r"\+", "": ""}
    for cell in cells():
        numbers = rf"{cell.clean_percent:.1f}  {cell.aa_percent:.1f}{signs[cell.mark]}"
        assert re.search(rf"^{cell.loss}_{cell.defence} .*{numbers}", shown, re.MULTILINE), cell.name
    assert "trh 3 and 5, awp 3 and 3, s2o 1 and 4, swa 0 and 3, base 1 and 3" in shown
    assert "vit_l16.imagenet_linf.trades1_trh  78.7  46.7" in shown
    assert shown.count("*") - 1 == len([cell for cell in cells() if cell.mark == "top"])
    assert max(map(len, shown.splitlines())) <= 110
    assert "  AA" not in shown and "apgd-ce+dlr" in shown and "tries less than aa-standard" in shown


def test_a_pattern_picks_cells_and_leaves_their_marks():
    records = json.loads(run("ls", "--paper", "--json", "vit_b16.cifar10_linf.at_*").stdout)
    assert [(r["defence"], r["mark"]) for r in records] == [
        ("base", ""),
        ("swa", ""),
        ("s2o", ""),
        ("awp", "silver"),
        ("trh", "top"),
    ]
    grid = run("ls", "--paper", "*.cifar10_linf.at_awp").stdout
    assert "at_awp" in grid and "at_trh" not in grid and "imagenet" not in grid
    assert "no result of the paper" in run("ls", "--paper", "vit_micro2*").stdout


def test_published_weights_and_the_paper_are_two_lists():
    result = CliRunner().invoke(group, ["ls", "--paper", "--published"])
    assert result.exit_code == 2 and "leave --published out" in result.output


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_l16.imagenet_linf.at_trh", "75.8 % clean, 48.8 % under apgd-ce+dlr"),
        ("vit_l16.imagenet_l2.trades1_trh", "77.1 % clean, 45.2 % under apgd-ce+dlr"),
        ("hybrid_l16.cifar100_linf.trades_trh", "66.4 % clean, 34.1 % under apgd-ce+dlr"),
        ("vit_l16.imagenet_linf.mart_trh", "no result for vit_l16.imagenet_linf.mart_trh"),
    ],
)
def test_recipe_and_show_give_the_papers_result(name, expected):
    assert f"the paper: {expected}" in (shown := run("recipe", name).stdout)
    assert json.loads(run("show", name, "--json").stdout)["paper"].startswith(expected)
    assert "% under AutoAttack" not in shown
    assert ("tries less than aa-standard" in shown) == ("no result" not in expected)


def test_a_changed_recipe_does_not_claim_the_papers_result():
    name = "vit_l16.imagenet_linf.at_trh"
    shown = run("recipe", name, "--set", "trh_lambda=0.01", "--set", "base_lr=0.1").stdout
    assert f"48.8 % under apgd-ce+dlr for {name}, which this recipe changes" in shown
    assert f"changed from {name}: trh_lambda=0.01 (was 0.0005)" in shown
    assert f"changed from {name}: base_lr=0.1 (was 0.01)" in shown
    assert "changed from" not in run("recipe", name).stdout


def test_ls_imports_neither_torch_nor_the_tools_of_tables():
    code = (
        "import sys; from robustzoo.cli import main\n"
        "try: main()\n"
        "finally: print({'torch', 'numpy', 'timm', 'huggingface_hub'} & set(sys.modules), file=sys.stderr)"
    )
    for arguments in (["ls"], ["ls", "--paper"], ["recipe", "vit_l16.cifar10_linf.at_s2o"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stderr.strip() == "set()"
