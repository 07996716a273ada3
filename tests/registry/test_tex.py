"""The paper's own source against the recipes: every accuracy, mark and hyper-parameter that it prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from robustzoo.registry import Recipe, recipe
from robustzoo.registry.catalog import ARCHITECTURES
from robustzoo.registry.paper import ARCHITECTURES as PAPER_ARCHITECTURES
from robustzoo.registry.paper import DEFENCES, LOSSES, cells, published_cell, read_table, tallies
from tests.registry.tex_tables import Text, read_tables

NETWORKS = {"ViT-B16": "vit_b16", "ViT-L16": "vit_l16", "Hybrid-L16": "hybrid_l16"}
DATASETS = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100", "ImageNet": "imagenet"}
THREATS = ("cifar10_linf", "cifar100_linf", "imagenet_linf", "imagenet_l2")
METHOD = re.compile(r"(AT|TRADES)\((base|SWA|S2O|AWP|TrH)\)")
Tables = list[tuple[int, list[list[Text]]]]


@pytest.fixture(scope="module")
def tex(shared) -> str:
    return (shared / "paper" / "trh_paper.tex").read_text(encoding="utf-8")


# --- what is printed ---


def threat_of(text: str) -> tuple[str, str] | None:
    found = re.search(r"\\ell_(\\infty|2) \(\\delta= ?([\d./]+)\)", text)
    return None if found is None else ("l2" if found[1] == "2" else "linf", found[2])


def printed_results(tables: Tables) -> Iterator[tuple[str, tuple[object, ...]]]:
    """Name -> (eps, clean, AA, mark) of every row of every result table."""
    for _, (networks, columns, header, *rows) in tables:
        if not any(cell.text.startswith("AA") for cell in header):
            continue
        for row in rows:
            loss, defence = METHOD.fullmatch(row[0].text).groups()
            network = column = ""
            for i in range(1, len(row), 2):
                network = networks[i].text or network
                column = columns[i].text
                norm, eps = threat_of(networks[0].text) or threat_of(column)
                dataset = DATASETS[column if column in DATASETS else networks[0].text]
                name = f"{NETWORKS[network]}.{dataset}_{norm}.{loss.lower()}_{defence.lower()}"
                mark = "top" if row[i + 1].bold else "silver" if row[i + 1].underlined else ""
                yield name, (eps, row[i].text, row[i + 1].text, mark)


def printed_choices(tables: Tables) -> Iterator[tuple[str, str, str, int]]:
    """(name, parameter, value, table) of every final choice of the tables per method."""
    for number, (title, *rows) in tables:
        found = re.fullmatch(r"Fine-tuning Hyper-parameters \((.*), (.*)\)", title[0].text)
        if found is None:
            continue
        threats = THREATS[:2] if found[1].startswith("CIFAR") else THREATS[2:]
        method = None
        for row in rows:
            method = METHOD.match(row[0].text) or method
            if method and row[1].text.startswith("\\"):
                for threat, cell in zip(threats, row[3:], strict=True):
                    name = f"{NETWORKS[found[2]]}.{threat}.{method[1].lower()}_{method[2].lower()}"
                    yield name, row[1].text, cell.text, number


def printed_frozen(tables: Tables) -> Iterator[tuple[str, str, str, int]]:
    """(dataset, parameter, value, table) of the tables of shared values."""
    for number, (title, *rows) in tables:
        found = re.fullmatch(r"Pre-Selected Hyper-parameters \((.*)\)", title[0].text)
        for row in rows if found else []:
            parameter = row[0].text.replace("\\", "")
            if len(row) == 4 and row[3].text and parameter != "Parameter":
                for dataset in ["imagenet"] if found[1] == "ImageNet" else ["cifar10", "cifar100"]:
                    yield dataset, parameter, row[3].text, number


# --- what our recipes say ---

CHOICES: dict[str, tuple[str, type]] = {
    r"\delta_awp": ("awp_delta", float),
    r"\alpha": ("", float),
    r"\lambda": ("trh_lambda", float),
    r"\lambda schedule": ("trh_schedule", str),
    r"\gamma": ("trh_gamma", float),
}


def _side(text: str) -> int:
    height, width = re.fullmatch(r"(\d+)\\times (\d+)", text).groups()
    assert height == width
    return int(height)


def _range(made: Recipe) -> str:
    if (made.mean, made.std) == ((0.47,), (0.25,)):
        return "centered"
    low, high = ((pixel - made.mean[0]) / made.std[0] for pixel in (0, 1))
    return f"[{low:g}, {high:g}]"


def _patch(made: Recipe, letter: str, plain: str) -> int:
    network = ARCHITECTURES[made.architecture].networks[made.image_size]
    found = re.search(rf"{letter}(\d+)", network.timm_name.rpartition("_")[2])
    return int(found[1]) if found else network.model_args[plain]


# Parameter of tables 3 and 4 -> (whether a recipe has the printed value, the recipe's field with its source).
FROZEN: dict[str, tuple[Callable[[Recipe, str], bool], str]] = {
    "img_size": (lambda made, text: made.image_size == _side(text), ""),
    "patch_size": (
        lambda made, text: (
            made.architecture == "hybrid_l16" or _patch(made, "k", "patch_size") == _side(text)
        ),
        "",
    ),
    "patch_stride": (
        lambda made, text: made.architecture == "hybrid_l16" or _patch(made, "s", "") == int(text),
        "",
    ),
    "parameter_init": (
        lambda made, text: (
            text == "ImageNet21K checkpoint"
            and all(tag.endswith("in21k") for tag in made.init[5:].partition("@")[0].split("+"))
        ),
        "init",
    ),
    "batch_size": (lambda made, text: made.batch_size == int(text), "batch_size"),
    "warm_up iterations": (lambda made, text: made.warmup_steps == int(text), "warmup_steps"),
    "optimizer": (
        lambda made, text: text == made.optimizer + "+momentum" * (made.momentum > 0),
        "optimizer",
    ),
    "base_lr": (lambda made, text: made.base_lr == float(text), "base_lr"),
    "decay_type": (lambda made, text: made.lr_schedule == text, "lr_schedule"),
    "l2_reg": (
        lambda made, text: made.l2_reg == (0 if "trh" in made.defences else float(text)),
        "l2_reg",
    ),
    "data_aug": (lambda made, text: made.augmentation == text, "augmentation"),
    "downsample": (lambda made, text: made.kernel_downsampling == text, "kernel_downsampling"),
    "data_range": (lambda made, text: _range(made) == text, "mean"),
    "use_cutmix": (lambda made, text: str(made.cutmix) == text, "cutmix"),
}


def disagreements(tex: str, make: Callable[[str], Recipe] = recipe) -> list[str]:
    """Every place where the tables of the paper's source and ours differ, or one of them has more."""
    tables, found = read_tables(tex), []
    printed, ours = dict(printed_results(tables)), {cell.name: cell for cell in cells()}
    found += [f"{name} is on one side only" for name in printed.keys() ^ ours.keys()]
    for name in printed.keys() & ours.keys():
        cell = ours[name]
        if printed[name] != (cell.eps, f"{cell.clean_percent:.1f}", f"{cell.aa_percent:.1f}", cell.mark):
            found.append(f"{name}: printed {printed[name]}")
        if make(name).threat_model.norm != cell.norm or make(name).threat_model.eps != _number(cell.eps):
            found.append(f"{name}: threat model {make(name).threat_model}")
    found += _frozen(tables, make)
    found += _choices(tables, make)
    return found


def _number(text: str) -> float:
    numerator, _, denominator = text.partition("/")
    return float(numerator) / float(denominator or 1)


def _frozen(tables: Tables, make: Callable[[str], Recipe]) -> Iterator[str]:
    frozen = list(printed_frozen(tables))
    for dataset in DATASETS.values():
        ours = [
            row
            for row in read_table("shared_hyperparameters")
            if dataset in row["dataset"].split(";") and row["source"].startswith("table")
        ]
        if len(ours) != len([row for row in frozen if row[0] == dataset]):
            yield f"{dataset}: {len(ours)} values are said to be in tables 3 and 4"
    for cell in cells():
        made = make(cell.name)
        for dataset, parameter, text, number in frozen:
            if dataset != cell.dataset:
                continue
            agrees, field = FROZEN[parameter]
            if not agrees(made, text):
                yield f"{cell.name}: {parameter} is printed as {text}"
            replaced = field == "l2_reg" and "trh" in made.defences
            # Table 4 is of ViT-B16 and ViT-L16; that the hybrid starts from a checkpoint is in section 4.1.
            replaced |= field == "init" and cell.name.startswith("hybrid_l16.imagenet")
            if field and f"table {number}" not in made.sources[field] and not replaced:
                yield f"{cell.name}: the source of {field} is {made.sources[field]}"


def _choices(tables: Tables, make: Callable[[str], Recipe]) -> Iterator[str]:
    choices = list(printed_choices(tables))
    if len(choices) != 4 * 2 * 2 * 6:
        yield f"{len(choices)} final choices in tables 5 and 6"
    for name, parameter, text, number in choices:
        field, kind = CHOICES[parameter]
        field = field or ("swa_decay" if name.endswith("swa") else "s2o_weight")
        made = make(name)
        if getattr(made, field) != kind(text):
            yield f"{name}: {parameter} is printed as {text}, and {field} is {getattr(made, field)}"
        if not re.search(rf"table {number}|tables 5-6", made.sources[field]):
            yield f"{name}: the source of {field} is {made.sources[field]}"


# --- the tests ---


def test_every_printed_number_and_mark_is_ours(tex):
    assert disagreements(tex) == []


@pytest.mark.parametrize(
    ("printed", "instead"),
    [
        (r"AT(\WA)    &88.0&", r"AT(\WA)    &88.1&"),
        (r"{\underline{60.1}}", "{60.1}"),
        (r"{\textbf{42.4}}", "{42.5}"),
        (r"AT(\AWP)  & 87.3  & \multicolumn{1}{c|}{\underline{61.3}} & 61.5 & 32.2 \\", ""),
        (r"\ell_\infty (\delta= 8/255)", r"\ell_\infty (\delta= 6/255)"),
    ],
)
def test_a_change_of_a_result_is_noticed(tex, printed, instead):
    assert printed in tex
    assert disagreements(tex.replace(printed, instead, 1)) != []


@pytest.mark.parametrize(
    ("before", "after", "instead"),
    [
        (r"batch\_size", "768", "512"),
        (r"base\_lr", "& 0.1", "& 0.01"),
        (r"patch\_stride", "& 2", "& 4"),
        (r"use\_cutmix", "&False", "&True"),
        (r"Fine-tuning  Hyper-parameters (CIFAR-10/100, ViT-L16)", "& 0.01", "& 0.02"),
        (r"Fine-tuning  Hyper-parameters (CIFAR-10/100, Hybrid-L16)", "& 0.995", "& 0.99"),
        (r"Fine-tuning  Hyper-parameters (ImageNet, ViT-L16)", "`linear' \\\\", "`constant' \\\\"),
        (r"Fine-tuning  Hyper-parameters (ImageNet, ViT-B16)", "& 0.3", "& 0.2"),
    ],
)
def test_a_change_of_a_hyper_parameter_is_noticed(tex, before, after, instead):
    start = tex.index(after, tex.index(before))
    assert disagreements(tex[:start] + instead + tex[start + len(after) :]) != []


def test_a_missing_row_is_noticed(tex):
    lines = tex.splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith(r"TRADES(\AWP)"))
    assert disagreements("\n".join(lines[:row] + lines[row + 1 :])) != []


def test_names_that_the_tables_leave_out_take_the_values_of_vit_l16(tex):
    printed = {name for name, *_ in printed_choices(read_tables(tex))}
    fields = ("awp_delta", "swa_decay", "s2o_weight", "trh_lambda", "trh_schedule", "trh_gamma")
    left_out = [cell for cell in cells() if cell.defence != "base" and cell.name not in printed]
    assert len(left_out) == 4 * 2 * 4
    for cell in left_out:
        like = cell.name.replace(cell.architecture, "vit_l16")
        made, source = recipe(cell.name), recipe(like)
        assert [getattr(made, field) for field in fields] == [getattr(source, field) for field in fields]
        for field in {"awp": ["awp_delta"], "trh": ["trh_lambda", "trh_schedule"]}.get(cell.defence, []):
            assert made.sources[field] == f"ours: as {like} ({source.sources[field]})"


def test_values_of_the_text(tex):
    """Sections 4.1 and 4.2, appendices C and D, in words."""
    steps = re.search(r"we take (\d+) PGD steps on CIFAR-10/100 and (\d+) steps for ImageNet", tex)
    weight = re.search(r"we use \$\\lambda_t = (\d+)\$ for TRADES", tex)
    decay = re.search(r"we use \$\\alpha=([\d.]+)\$ so that", tex)
    at = re.search(r"([\d.]+) \* AT\\_loss \+ ([\d.]+) \* S2O\\_loss", tex)
    trades = re.search(r"([\d.]+) \* \\frac.*\+ ([\d.]+) \* S2O\\_loss", tex)
    gamma = re.search(r"find ([\d.]+) as a reasonable choice for CIFAR-10/100 and ([\d.]+) as", tex)
    mean = re.search(r"per-channel mean \(([\d.]+)\) .* standard deviation \(([\d.]+)\)", tex)
    epsilon = re.search(
        r"\$\\epsilon=3.0\$ for the \$\\ell_2\$ and \$\\epsilon=0.0157 \(\\approx (4/255)\)", tex
    )
    assert epsilon and "\\epsilon=0.031 (\\approx 8/255)" in tex and "1M DDPM images to CIFAR-10/100" in tex
    for cell in cells():
        made, cifar = recipe(cell.name), cell.dataset != "imagenet"
        assert made.attack_steps == int(steps[1 if cifar else 2])
        assert made.loss_weight == (int(weight[1]) if cell.loss == "trades" else None)
        assert made.lr_schedule == "cosine"
        hybrid = cell.architecture == "hybrid_l16"  # table 4 is of ViT-B16 and ViT-L16
        like = f"vit_l16.imagenet_{cell.norm}.{cell.loss}_base"
        assert made.sources["lr_schedule"] == (
            "appendix C" if cifar else f"ours: as {like} (table 4)" if hybrid else "table 4"
        )
        assert (made.extra_data, made.sources["extra_data"][:11]) == (
            "ddpm" if cifar else "none",
            "section 4.1",
        )
        if cifar:
            assert (made.mean, made.std) == ((float(mean[1]),), (float(mean[2]),))
        if cell.defence == "swa":
            assert made.swa_decay == float(decay[1])
        if cell.defence == "s2o":
            shares = (at if cell.loss == "at" else trades).groups()
            assert (1 - made.s2o_weight, made.s2o_weight) == tuple(map(float, shares))
        if cell.defence == "trh":
            assert made.trh_gamma == float(gamma[1 if cifar else 2])


def test_the_two_results_at_another_weight(tex):
    found = re.search(r"reduce \$\\lambda_t\$ to (\d).*?\(([\d.]+), ([\d.]+)\).*?\(([\d.]+), ([\d.]+)\)", tex)
    for norm, clean, aa in (("linf", *found.groups()[1:3]), ("l2", *found.groups()[3:])):
        name = f"vit_l16.imagenet_{norm}.trades{found[1]}_trh"
        assert published_cell(name) == (float(clean), float(aa))
        made, plain = recipe(name), name.replace("trades1", "trades")
        assert made.loss_weight == float(found[1])
        for field in ("trh_lambda", "trh_schedule"):  # table 6 is at lambda_t = 6
            assert made.sources[field] == f"ours: as {plain} (table 6)"


def test_the_tallies_of_the_text(tex):
    words = re.search(
        r"either the top result \(in (\d).*?silver result \(in (\d).*?AWP.*?(\d) top and (\d)", tex
    )
    others = re.search(
        r"S2O has (\d) top and (\d) silver; SWA has (\d) silver; and the base has (\d) top and (\d)", tex
    )
    trh, awp = (tuple(map(int, words.groups()[i : i + 2])) for i in (0, 2))
    s2o, swa, base = (
        tuple(map(int, pair)) for pair in ((others[1], others[2]), (0, others[3]), (others[4], others[5]))
    )
    counted = tallies(c for c in cells() if c.table == "main" and c.dataset != "imagenet")
    assert counted == {"trh": trh, "awp": awp, "s2o": s2o, "swa": swa, "base": base}


def test_the_names_of_the_tables_are_the_papers(tex):
    assert set(NETWORKS.values()) == set(PAPER_ARCHITECTURES)
    methods = {METHOD.fullmatch(row[0].text) for _, rows in read_tables(tex) for row in rows} - {None}
    assert {m[1].lower() for m in methods} == set(LOSSES)
    assert {m[2].lower() for m in methods} == set(DEFENCES)
