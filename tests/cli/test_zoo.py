"""`robustzoo ls`, `show`, `recipe`: what a person and a script read, and what a wrong name gets."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest
from click.testing import CliRunner

from robustzoo.cli import group, listing
from robustzoo.leaderboard.rows import rows
from robustzoo.registry import all_names, list_models, recipe

NAME = "vit_micro2.digits_linf.at_base"


def run(*arguments: str):
    return CliRunner().invoke(group, list(arguments), catch_exceptions=False)


def test_ls_shows_the_models_with_weights_and_how_many_recipes_there_are():
    shown = run("ls").stdout.splitlines()
    published = list_models(published_only=True)
    assert [line.split()[0] for line in shown[1 : len(published) + 1]] == published
    assert shown[-1] == f"{len(all_names())} recipes: robustzoo ls --recipes"
    assert max(map(len, shown)) <= 80
    shown = run("ls", "--recipes").stdout.splitlines()
    assert set(all_names()) <= {line.split()[0] for line in shown if line} and max(map(len, shown)) <= 80


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["cifar10", "linf", "trades"], r"[^.]+\.cifar10_linf\.trades[0-9.]*_.*"),
        (["IMAGENET", "l2", "awp", "--loss", "at"], r"[^.]+\.imagenet_l2\.at_(\w+_)?awp(_\w+)?"),
        (["cifar10jp"], r"[^.]+\.cifar10jpg_.*"),
        (["vit_b16.*_base", "--threat", "l2"], r"vit_b16\.imagenet_l2\.\w+_base"),
        (["--threat", "linf:4/255", "--architecture", "vit_l16"], r"vit_l16\.imagenet_linf\..*"),
        (["--dataset", "digits", "--recipes"], r".*\.digits_linf\..*"),
    ],
)
def test_words_and_options_are_filters(arguments, pattern):
    found = [record["name"] for record in json.loads(run("ls", *arguments, "--json").stdout)]
    assert found and set(found) == {name for name in all_names() if re.fullmatch(pattern, name)}
    filtered = run("ls", *arguments)
    assert set(found) <= set(filtered.stdout.split()) and filtered.exit_code == 0


def test_ls_names_models_with_weights_before_recipes():
    shown = run("ls", "trh", "--dataset", "digits").stdout
    names = set(list_models("*.digits_*trh*", published_only=True))
    assert names and {line.split()[0] for line in shown.splitlines()[1 : len(names) + 1]} == names
    count = len([n for n in all_names() if ".digits_" in n and "trh" in n.rpartition(".")[2].split("_")])
    assert f"{count} recipes match: robustzoo ls --recipes trh --dataset digits" in shown


def test_ls_sorts_and_gives_numbers_as_numbers():
    records = json.loads(run("ls", "--sort", "robust", "--json").stdout)
    values = [record["robust"] for record in records]
    assert values == sorted(values, reverse=True) and all(isinstance(value, float) for value in values)
    first = records[0]
    assert first["robust_interval"][0] < first["robust"] < first["robust_interval"][1] < first["clean"] <= 1
    rows = list(csv.DictReader(io.StringIO(run("ls", "--sort", "robust", "--csv").stdout)))
    assert [(row["name"], float(row["robust"])) for row in rows] == [
        (r["name"], r["robust"]) for r in records
    ]
    lines = run("ls", "--sort", "robust", "--markdown").stdout.splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == [record["name"] for record in records]
    assert f"| {100 * values[0]:.1f} |" in lines[2]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--threat", "linf:foo"], "linf, l2"),
        (["--dataset", "mnist"], "digits"),
        (["--recipes", "--published"], "leave one out"),
        (["--paper", "--csv"], "leave --csv out"),
        (["--paper", "--dataset", "cifar10"], "takes WORDs"),
    ],
)
def test_ls_refuses_in_words(arguments, word, ended):
    code, out, said = ended("ls", *arguments)
    assert code == 2 and out == "" and word in said


def test_help_of_the_commands_is_not_cut_off():
    assert "..." not in run("--help").stdout.partition("Commands:")[2]


def test_ls_json_is_filtered_by_pattern():
    records = json.loads(run("ls", "*.imagenet_linf.trades_trh", "--json").stdout)
    assert [r["name"] for r in records] == [
        f"{architecture}.imagenet_linf.trades_trh"
        for architecture in ("convnext_tiny", "hybrid_l16", "vit_b16", "vit_l16", "vit_s16", "xcit_s12")
    ]
    assert all(r["weights"] is None and r["threat_model"] == "linf:4/255" for r in records)


def test_ls_without_a_match_says_so_and_ends_with_1():
    done = run("ls", "nothing*")
    assert "no model matches 'nothing*'" in done.stdout and done.exit_code == 1
    done = run("ls", "nothing*", "--json")
    assert json.loads(done.stdout) == [] and done.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--threat", "linf:8/255", "--published"],
            r"none of the {n} models with weights matches '--threat ",
        ),
        (["nothing", "--published"], r"none of the {n} models with weights matches 'nothing'; .* shows all"),
        (["--threat", "linf:7/255"], r"no model matches '--threat linf:7/255'; .* shows all \d+ names"),
    ],
)
def test_ls_says_what_matches_nothing_and_among_what(arguments, words):
    done, count = run("ls", *arguments), len(list_models(published_only=True))
    assert done.exit_code == 1 and re.match(words.format(n=count), done.stdout), done.stdout
    for command in re.findall("recipes do: robustzoo (.*)", done.stdout):
        shown = run(*command.split())
        assert shown.exit_code == 0 and "linf:8/255" in shown.stdout
    assert ("recipes do:" in done.stdout) == ("8/255" in done.stdout)


def test_ls_without_any_weights_says_so(monkeypatch):
    monkeypatch.setattr(listing, "rows", lambda: [replace(item, weights=None) for item in rows()])
    done = run("ls", "--published", "--threat", "linf:8/255")
    assert done.exit_code == 1 and done.stdout.startswith("no weights are published; ")


def test_ls_published_is_filtered_by_pattern_too():
    records = json.loads(run("ls", "--published", "--json", "*.at_*").stdout)
    assert [r["name"] for r in records] == list_models("*.at_*", published_only=True)


def test_show_of_an_unpublished_name_gives_the_training_command():
    shown = run("show", "vit_l16.imagenet_linf.at_trh").stdout
    assert "deepspeed training/train.py vit_l16.imagenet_linf.at_trh" in shown and "none published" in shown


@pytest.mark.parametrize("name", all_names()[::41])
def test_show_asks_for_data_only_where_a_dataset_needs_files(name):
    data = "" if ".digits_" in name else " --data DIR"
    command = f"deepspeed training/train.py {name}{data} --out runs/{name}"
    assert json.loads(run("show", name, "--json").stdout)["train"] == command
    assert re.search(rf"^train +{re.escape(command)}$", run("show", name).stdout, re.MULTILINE)


@pytest.mark.parametrize("name", all_names()[::41])
def test_recipe_prints_every_value_and_round_trips_as_a_file(name, tmp_path):
    shown = run("recipe", name).stdout
    assert recipe(name).digest[:16] in shown and "passes per step" in shown
    path = tmp_path / "recipe.json"
    path.write_text(run("recipe", name, "--json").stdout)
    assert recipe(path) == recipe(name)


def test_a_changed_recipe_says_so():
    shown = run("recipe", "vit_micro2.digits_linf.at_trh", "--set", "trh_lambda=0.5").stdout
    assert shown.startswith("vit_micro2.digits_linf.at_trh+") and "0.5" in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["show", "vit_l16.imagnet_linf.at_trh"], "vit_l16.imagenet_linf.at_trh"),
        (["show", "vit_micro2.imagenet_linf.at_trh"], "vit_micro2"),
        (["recipe", "vit_micro2.digits_linf.at"], "at_base"),
        (["recipe", "vit_micro2.digits_linf.at_trh", "--set", "threat_model=linf:-1/255"], "epsilon"),
        (["recipe", "vit_micro2.digits_linf.at_trh", "--set", "trh_lamda=1"], "trh_lambda"),
        (
            ["recipe", "vit_micro2.digits_linf.at_trh", "--set", "dataset=foo"],
            "no folder with a dataset.json",
        ),
        (["recipe", "vit_micro2.digits_linf.at_trh", "--set", "epochs=1", "--set", "dataset=foo"], "dataset"),
        (["recipe", "vit_micro2.digits_linf.at_trh", "--set", "dataset=" + 5000 * "x"], "no folder with"),
        (["recipe", "vit_micro2.digits_linf.trades"], "Did you mean vit_micro2.digits_linf.trades_base?"),
        (["list"], "did you mean `robustzoo ls`?"),
        (["eval"], "did you mean `robustzoo evaluate`?"),
        (["verify", "model.pt"], "FILE.py:FUNCTION"),
        (["evaluate", "runs/x/model.safetensors"], "name the model folder"),
        *(([command, "a" * 5000], "a") for command in ("show", "recipe", "verify", "evaluate")),
        *(([command, f"xy:{'a' * 5000}"], "no installed package") for command in ("show", "recipe")),
        (["verify", f"x:{'a' * 5000}"], "neither a model name nor a folder"),
        (["recipe", f"{'a' * 5000}.json"], "File name too long"),
        (["verify", f"a/{'b' * 5000}"], "neither a model name nor a folder"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_bad_input_is_one_message_and_exit_code_2(arguments, expected, ended):
    code, out, said = ended(*arguments)
    assert code == 2 and out == "" and expected in said and len(said) < 2000


ALLOCATOR = RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")
ERRORS = [
    MemoryError(),
    ALLOCATOR,
    RecursionError("too deep"),
    RuntimeError("two\nlines"),
    KeyError("x"),
    EOFError(),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize(
    "arguments", [["ls"], ["show", "x"], ["verify", NAME], ["report", NAME], ["card", "."]]
)
def test_what_nobody_foresaw_ends_with_2_and_one_line(ended, monkeypatch, arguments, error):
    """1 means refuted, or nothing found."""

    def fail(*_, **__):
        raise error

    where = "robustzoo.verify"
    if arguments[0] == "verify":
        monkeypatch.setattr(where, fail)
    else:
        monkeypatch.setattr(group.get_command(None, arguments[0]), "callback", fail)
    code, out, said = ended(*arguments)
    assert code == 2 and out == "" and said.startswith("robustzoo: ") and said.count("\n") == 1
    assert "memory" in said if error in ERRORS[:2] else "ROBUSTZOO_DEBUG=1" in said
    if arguments[0] in ("verify", "report"):
        code, out, said = ended(*arguments, "--json")
        document = json.loads(out)
        assert code == 2 and document["exit_code"] == 2 and document["error"] in repr([error, RuntimeError])
    monkeypatch.setenv("ROBUSTZOO_DEBUG", "1")
    if not isinstance(error, EOFError):
        with pytest.raises(type(error)):
            ended(*arguments)


def test_ctrl_c_ends_with_the_code_of_shells(monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(listing.ls, "callback", interrupted)
    done = CliRunner().invoke(group, ["ls"])
    assert done.exit_code == 130 and "robustzoo: interrupted" in done.output
