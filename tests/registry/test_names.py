"""The name grammar: one long table of accepted, refused and ambiguous names."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from robustzoo.registry import IncompatibleName, UnknownName, all_names, check_compatible
from robustzoo.registry.catalog import ARCHITECTURES, DATASETS, DEFENCES, LOSSES, THREATS
from robustzoo.registry.names import ModelName, parse, suggest
from robustzoo.registry.threat_model import NORMS

V = "vit_l16.imagenet_linf."
ENDINGS = [
    *("base", "trh", "s2o", "awp", "swa", "trh_awp", "trh_swa", "s2o_awp", "s2o_swa", "awp_swa"),
    *("trh_awp_swa", "s2o_awp_swa"),
]
# Grammatical names and their parts; the last column: "ok", or what makes the combination impossible.
ACCEPTED = [
    (V + "at_base", ("vit_l16", "imagenet", "linf", "at", None, ()), "ok"),
    (V + "at_trh", ("vit_l16", "imagenet", "linf", "at", None, ("trh",)), "ok"),
    (V + "trades_base", ("vit_l16", "imagenet", "linf", "trades", None, ()), "ok"),
    (V + "trades_trh", ("vit_l16", "imagenet", "linf", "trades", None, ("trh",)), "ok"),
    (V + "trades1_trh", ("vit_l16", "imagenet", "linf", "trades", "1", ("trh",)), "ok"),
    (V + "trades0.5_base", ("vit_l16", "imagenet", "linf", "trades", "0.5", ()), "ok"),
    (V + "trades10_base", ("vit_l16", "imagenet", "linf", "trades", "10", ()), "ok"),
    (V + "trades6.5_trh", ("vit_l16", "imagenet", "linf", "trades", "6.5", ("trh",)), "ok"),
    ("vit_b16.imagenet_l2.at_base", ("vit_b16", "imagenet", "l2", "at", None, ()), "ok"),
    ("vit_micro2.digits_linf.at_base", ("vit_micro2", "digits", "linf", "at", None, ()), "ok"),
    ("vit_ti4.cifar10jpg_linf.at_trh", ("vit_ti4", "cifar10jpg", "linf", "at", None, ("trh",)), "ok"),
    (V + "at_awp", ("vit_l16", "imagenet", "linf", "at", None, ("awp",)), "ok"),
    (V + "at_swa", ("vit_l16", "imagenet", "linf", "at", None, ("swa",)), "ok"),
    (V + "at_s2o", ("vit_l16", "imagenet", "linf", "at", None, ("s2o",)), "ok"),
    (
        V + "at_trh_awp_swa",
        ("vit_l16", "imagenet", "linf", "at", None, ("trh", "awp", "swa")),
        "ok",
    ),
    (V + "at_s2o_swa", ("vit_l16", "imagenet", "linf", "at", None, ("s2o", "swa")), "ok"),
    (V + "alp_base", ("vit_l16", "imagenet", "linf", "alp", None, ()), "ok"),
    (V + "alp0.5_trh", ("vit_l16", "imagenet", "linf", "alp", "0.5", ("trh",)), "ok"),
    (V + "mart_trh", ("vit_l16", "imagenet", "linf", "mart", None, ("trh",)), "ok"),
    (V + "mart5_base", ("vit_l16", "imagenet", "linf", "mart", "5", ()), "ok"),
    (V + "mart_s2o", ("vit_l16", "imagenet", "linf", "mart", None, ("s2o",)), "ok"),
    (
        "vit_micro2.imagenet_linf.at_base",
        ("vit_micro2", "imagenet", "linf", "at", None, ()),
        "use convnext_tiny or",
    ),
    ("vit_l16.digits_linf.at_base", ("vit_l16", "digits", "linf", "at", None, ()), "use vit_micro2"),
    ("vit_l16.cifar10_linf.at_base", ("vit_l16", "cifar10", "linf", "at", None, ()), "ok"),
    ("vit_b16.cifar10jpg_linf.at_base", ("vit_b16", "cifar10jpg", "linf", "at", None, ()), "use vit_ti4"),
    ("hybrid_l16.cifar100_linf.mart_base", ("hybrid_l16", "cifar100", "linf", "mart", None, ()), "ok"),
    ("vit_ti4.cifar100_linf.at_base", ("vit_ti4", "cifar100", "linf", "at", None, ()), "use vit_b16"),
    ("vit_micro2.digits_l2.at_base", ("vit_micro2", "digits", "l2", "at", None, ()), "no l2 threat model"),
    ("vit_l16.imagenet_l1.at_base", ("vit_l16", "imagenet", "l1", "at", None, ()), "only linf, l2"),
]
# Texts that are no names, with a part of the message; ambiguous ones say which name to write.
REFUSED = [
    ("", "expected architecture"),
    ("x", "expected architecture"),
    ("vit_l16", "expected architecture"),
    ("vit_l16.imagenet_linf", "expected architecture"),
    ("..", "unknown architecture ''"),
    ("vit_l16..at_base", "'' is not dataset_threat"),
    (V, "unknown loss ''"),
    (V + "at", "at_base"),
    (V + "trades", "trades_base"),
    (V + "trades1", "trades1_base"),
    (V + "at_", "unknown modifier ''"),
    (V + "_trh", "unknown loss ''"),
    (V + "trh", "unknown loss 'trh'"),
    (V + "base", "unknown loss 'base'"),
    (V + "at_base_trh", "base means no modifier"),
    (V + "at_trh_base", "base means no modifier"),
    (V + "at_base_base", "base means no modifier"),
    (V + "at_trh_trh", "repeated"),
    (V + "at_trh_s2o", "exclude each other"),
    (V + "at_s2o_trh", "exclude each other"),
    (V + "at_awp_trh", "one order: at_trh_awp"),
    (V + "trades1_swa_awp", "one order: trades1_awp_swa"),
    (V + "at_swa_awp_s2o", "one order: at_s2o_awp_swa"),
    (V + "at_thr", "unknown modifier 'thr'"),
    (V + "at trh", "unknown loss"),
    (V + "at-trh", "unknown loss"),
    (V + "at_TrH", "unknown modifier"),
    (V + "AT_trh", "unknown loss 'AT'"),
    (V + "at1_base", "at has no weight"),
    (V + "trades6_trh", "without the number"),
    (V + "alp1_base", "without the number"),
    (V + "mart6_trh", "without the number"),
    (V + "trades0_trh", "not a weight"),
    (V + "trades01_trh", "not a weight"),
    (V + "trades1.0_trh", "not a weight"),
    (V + "trades6.0_trh", "not a weight"),
    (V + "trades.5_trh", "unknown loss"),
    (V + "trades1._trh", "not a weight"),
    (V + "trades1.2.3_trh", "not a weight"),
    (V + "trades1e3_trh", "unknown loss"),
    (V + "trades-1_trh", "unknown loss"),
    (V + "trades1234567_trh", "not a weight"),
    (V + "trades١_trh", "unknown loss"),
    (V + "at_base ", "unknown modifier 'base '"),
    (V + "at_base\n", "unknown modifier"),
    (" " + V + "at_base", "unknown architecture"),
    (V + "at_base.pt", "unknown modifier"),
    ("VIT_L16.imagenet_linf.at_base", "unknown architecture"),
    ("vit_l14.imagenet_linf.at_base", "unknown architecture 'vit_l14'"),
    ("vit_l16.imagenet.at_base", "is not dataset_threat"),
    ("vit_l16._linf.at_base", "is not dataset_threat"),
    ("vit_l16.imagnet_linf.at_base", "unknown dataset 'imagnet'"),
    ("vit_l16.imagenet_l.at_base", "unknown norm 'l'"),
    ("vit_l16.imagenet_linf_4.at_base", "unknown dataset"),
    ("vit_l16.imagenet_Linf.at_base", "unknown norm 'Linf'"),
    (V + "at_base+0123abcd", "give the model's folder"),
    (None, "expected text"),
    (3, "expected text"),
    (b"vit_l16.imagenet_linf.at_base", "expected text"),
]


@pytest.mark.parametrize(("text", "parts", "verdict"), ACCEPTED)
def test_accepted_names(text, parts, verdict):
    name = parse(text)
    assert name == ModelName(*parts)
    assert str(name) == text
    if verdict == "ok":
        check_compatible(name)
    else:
        with pytest.raises(IncompatibleName, match=verdict) as caught:
            check_compatible(name)
        assert text in str(caught.value)


@pytest.mark.parametrize(("text", "problem"), REFUSED)
def test_refused_names_say_why(text, problem):
    with pytest.raises(UnknownName) as caught:
        parse(text)
    message = str(caught.value)
    assert problem in message
    assert not message.startswith(("'\"", '"')), "printed plainly, not as the repr of a KeyError"


@pytest.mark.parametrize(
    ("text", "known", "usable"),
    [
        ("vit_micro2.digits_linf.at_thr", ["base", *DEFENCES], {"base", *DEFENCES}),
        ("vit_micro2.digits_linf.rst_trh", LOSSES, set(LOSSES)),
        ("vit_micro2.mnist_linf.at_trh", DATASETS, {d for a in ARCHITECTURES.values() for d in a.datasets}),
        ("vit_b16.imagenet_l0.at_trh", NORMS, {"linf", "l2"}),
        ("vit_micro2.digits_l0.at_trh", NORMS, {"linf"}),
        ("vit_s15.imagenet_l2.at_trh", ARCHITECTURES, set(ARCHITECTURES)),
    ],
)
def test_what_has_no_recipe_is_not_offered(text, known, usable):
    with pytest.raises(UnknownName) as caught:
        parse(text)
    offered = f"(known: {', '.join(key for key in known if key in usable)}"
    later = ", ".join(key for key in known if key not in usable)
    assert offered + (f"; without a recipe here: {later})" if later else ")") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("vit_l16.imagnet_linf.at_base", "vit_l16.imagenet_linf.at_base"),
        ("vit_micro.digits_linf.at_trh", "vit_micro2.digits_linf.at_trh"),
        ("vit_micro2.digits_linf.trades_thr", "vit_micro2.digits_linf.trades_trh"),
        ("VIT_B16.IMAGENET_L2.AT_BASE", "vit_b16.imagenet_l2.at_base"),
        ("vit_l16-imagenet-linf-at_trh", "vit_l16.imagenet_linf.at_trh"),
    ],
)
def test_the_nearest_right_name_comes_first(text, nearest):
    with pytest.raises(UnknownName, match=f"Did you mean {nearest}"):
        parse(text)


def test_every_listed_name_parses_and_is_compatible():
    for name in all_names():
        assert str(parse(name)) == name
        check_compatible(parse(name))


def test_all_names_are_exactly_the_compatible_combinations(monkeypatch):
    monkeypatch.setattr("robustzoo.registry.names.did_you_mean", lambda *_: "")  # slow, thousands of times
    methods = [f"{loss}_{end}" for loss in LOSSES for end in ENDINGS][::5]  # every loss
    compatible = set()
    for architecture, dataset, norm, method in itertools.product(
        ARCHITECTURES, DATASETS, ("linf", "l2", "l1"), methods
    ):
        name = f"{architecture}.{dataset}_{norm}.{method}"
        try:
            check_compatible(parse(name))
        except IncompatibleName:
            continue
        compatible.add(name)
    assert compatible == {name for name in all_names() if name.split(".")[2] in methods}
    assert all_names() == sorted(set(all_names()))
    assert len(all_names()) == 4 * 12 * (1 + 6 * 2 + 3 * 2 + 3 * 4)


_WEIGHTS = st.one_of(
    st.none(),
    st.decimals("0.001", 9999, places=3).map(lambda d: f"{d:f}".rstrip("0").rstrip(".")),
)


@given(
    st.sampled_from(sorted(ARCHITECTURES)),
    st.sampled_from(sorted(THREATS)),
    st.sampled_from(sorted(LOSSES)),
    _WEIGHTS,
    st.sampled_from([(), ("trh",), ("s2o",)]),
    st.sampled_from([(), ("awp",), ("swa",), ("awp", "swa")]),
)
def test_names_round_trip(architecture, threat, loss, weight, first, rest):
    default = LOSSES[loss].default_weight
    name = ModelName(architecture, *threat, loss, None if default in (None, weight) else weight, first + rest)
    assert parse(str(name)) == name


@given(st.text(max_size=60) | st.lists(st.sampled_from([*V.split("."), "at", "_", ".", "trh"])).map("".join))
def test_parse_is_total_and_strict(text):
    try:
        name = parse(text)
    except UnknownName:
        return
    assert str(name) == text


def test_suggestions_ignore_case_and_know_when_nothing_is_near():
    assert suggest("WARMUP", ["warmup_steps", "momentum"]) == ["warmup_steps"]
    assert suggest("zzzz", ["warmup_steps", "momentum"]) == []
    assert suggest("x" * 100_000, ["momentum"]) == []
