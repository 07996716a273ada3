"""Claims through a card and back, and every way in which a card can fail to be a claim."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import yaml
from huggingface_hub import ModelCard
from hypothesis import given, settings
from hypothesis import strategies as st

from robustzoo.cards import CardError, Claim
from robustzoo.cards.claims import TERMS, default_tolerance, eval_results, model_index
from robustzoo.cards.metadata import Card, card_data, dump_block, read_block
from robustzoo.registry import ThreatModel, recipe

CLAIM = Claim(
    model_name="vit_micro2.digits_linf.trades_trh",
    threat_model=ThreatModel.parse("linf:1/10"),
    dataset_id="digits",
    split="test",
    subset="all",
    dataset_digest="b" * 64,
    protocol="aa-standard",
    protocol_digest="a" * 64,
    n=500,
    clean_correct=482,
    robust_correct=407,
    seed=0,
    tolerance=5,
)


def card(*claims: Claim) -> str:
    """A card with the metadata alone."""
    made = recipe("vit_micro2.digits_linf.trades_trh")
    data = card_data(made, eval_results(claims), weights_sha256="c" * 64, license="apache-2.0")
    data["model_name"] = claims[0].model_name
    return dump_block(data) + "\n# A card\n"


def edited(change) -> str:
    """The card of CLAIM after `change(metadata)`, written by an ordinary YAML writer."""
    block = read_block(card(CLAIM))
    change(block)
    return f"---\n{yaml.safe_dump(block)}---\n"


def metric(block: dict, which: int) -> dict:
    return block["model-index"][0]["results"][0]["metrics"][which]


# Texts that a YAML reader might take for something else, and any printable text.
texts = st.sampled_from(
    ["8", "1e5", "true", "null", "08", "0x1f", "1:30", "2026-01-01", "- a", "a: b", "#", "'", "---"]
) | (
    st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20).filter(
        lambda text: text.strip() and text.isprintable()
    )
)
threats = st.builds(
    lambda norm, k: ThreatModel.parse(f"{norm}:{k}/255"),
    st.sampled_from(["linf", "l2", "l1"]),
    st.integers(1, 255),
)


@st.composite
def claims(draw) -> list[Claim]:
    """Up to four claims about one subset: one clean count, several threat models and protocols."""
    n = draw(st.integers(1, 60_000))
    clean = draw(st.integers(0, n))
    first = Claim(
        model_name=draw(texts),
        threat_model=draw(threats),
        dataset_id=draw(texts),
        split=draw(texts),
        subset=draw(texts),
        dataset_digest=draw(texts),
        protocol="pgd-1",
        protocol_digest=draw(texts),
        n=n,
        clean_correct=clean,
        robust_correct=draw(st.integers(0, clean)),
        seed=draw(st.integers(-(2**63), 2**63)),
        tolerance=draw(st.integers(0, default_tolerance(n))),
    )
    more = [
        replace(
            first, threat_model=draw(threats), protocol=f"pgd-{i}", robust_correct=draw(st.integers(0, clean))
        )
        for i in range(2, draw(st.integers(2, 5)))
    ]
    return [first, *more]


@settings(max_examples=30)
@given(claims())
def test_round_trip_through_a_card(made):
    text = card(*made)
    assert Claim.from_card(text) == made
    # Also after the Hub's own client has read and rewritten the card.
    assert Claim.from_card(str(ModelCard(text))) == made
    assert ModelCard(text).data.eval_results == eval_results(made)


def test_two_subsets_keep_their_own_terms():
    other = replace(
        CLAIM,
        subset="n50-seed1",
        dataset_digest="e" * 64,
        n=50,
        clean_correct=48,
        robust_correct=40,
        tolerance=3,
    )
    assert Claim.from_card(card(CLAIM, other)) == [CLAIM, other]
    assert [len(result["metrics"]) for result in model_index([CLAIM, other])[0]["results"]] == [2, 2]


def test_metadata_states_counts_and_never_what_belongs_to_the_hub():
    (model,) = CLAIM.to_model_index()
    (result,) = model["results"]
    clean, robust = result["metrics"]
    assert result["dataset"]["type"] == "digits" and result["task"]["type"] == "image-classification"
    assert (clean["value"], robust["value"]) == (0.964, 0.814)
    assert robust["args"] == {
        "quantity": "robust",
        "correct": 407,
        "n": 500,
        "norm": "linf",
        "epsilon": "1/10",
        "protocol": "aa-standard",
        "protocol_digest": "a" * 64,
        "seed": 0,
        "tolerance": 5,
        "dataset_digest": "b" * 64,
    }
    text = card(CLAIM)
    assert "verif" not in text
    assert 'epsilon: "1/10"' in text
    assert Card.read(text).weights_sha256 == "c" * 64


def test_from_evidence(evidence):
    claim = Claim.from_evidence(evidence)
    assert (claim.n, claim.clean_correct, claim.robust_correct, claim.tolerance) == (10, 8, 4, 3)
    assert claim.threat_model == evidence.threat_model
    assert claim.robust_accuracy == evidence.robust_accuracy
    assert claim.clean_accuracy == evidence.clean_accuracy


@pytest.mark.parametrize(("n", "images"), [(1, 3), (399, 3), (400, 4), (500, 5), (5000, 50), (50_000, 500)])
def test_default_tolerance(n, images):
    assert default_tolerance(n) == images


def test_differences():
    other = replace(CLAIM, seed=7, protocol="pgd-10")
    assert CLAIM.differences(other) == {"seed": (0, 7), "protocol": ("aa-standard", "pgd-10")}
    assert set(CLAIM.differences(other, TERMS)) == {"protocol"}
    assert CLAIM.differences(CLAIM) == {}


def test_results_of_others_are_passed_over():
    def add(block):
        block["model-index"][0]["results"][0]["metrics"].append(
            {"type": "accuracy", "value": 0.1, "name": "theirs"}
        )

    assert Claim.from_card(edited(add)) == [CLAIM]


def _args(which, **changes):
    return lambda block: metric(block, which)["args"].update(changes)


def _drop(which, name):
    return lambda block: metric(block, which)["args"].pop(name)


def _value(which, value):
    return lambda block: metric(block, which).update(value=value)


def _repeat_robust(block):
    metrics = block["model-index"][0]["results"][0]["metrics"]
    metrics.append(copy.deepcopy(metrics[1]))


BAD_METADATA = [
    (lambda b: b.pop("model-index"), "no model-index"),
    (lambda b: b.update({"model-index": {"name": "x"}}), "list of one model"),
    (lambda b: b["model-index"].append(copy.deepcopy(b["model-index"][0])), "list of one model"),
    (lambda b: b["model-index"][0].pop("results"), "cannot be read"),
    (lambda b: b["model-index"][0].update(results=7), "cannot be read"),
    (lambda b: b["model-index"][0]["results"][0].update(source=["x"]), "cannot be read"),
    (lambda b: b["model-index"][0].update(results=[]), "no robust accuracy"),
    (lambda b: metric(b, 1).pop("args"), "no robust accuracy"),
    (lambda b: metric(b, 0).pop("args"), "no clean accuracy"),
    (_args(1, correct=501), "0 <= correct <= n"),
    (_args(1, correct=-1), "0 <= correct <= n"),
    (_args(1, correct="407"), "0 <= correct <= n"),
    (_args(1, n=0), "0 <= correct <= n"),
    (_args(0, correct=400), r"0\.964 does not match 400 / 500"),
    (_value(1, 0.914), r"0\.914 does not match 407 / 500"),
    (_value(1, 81.4), "does not match"),
    (_value(1, "0.814"), "does not match"),
    (_value(1, True), "does not match"),
    (_value(1, float("nan")), "in plain decimal digits"),
    (_args(1, correct=499), "does not match"),
    (lambda b: (_args(0, correct=400)(b), _value(0, 0.8)(b)), "407 robust and 400 clean"),
    (_args(1, epsilon=0.1), "quoted text"),
    (_args(1, epsilon="0.1"), "must be written linf:1/10"),
    (_args(1, norm="Linf"), "must be written linf:1/10"),
    (_args(1, epsilon="-1"), "not a positive number"),
    (_args(1, norm="l7"), "unknown norm"),
    (_drop(1, "protocol"), "lack 'protocol'"),
    (_drop(1, "seed"), "lack 'seed'"),
    (_args(1, seed="x"), "seed: expected a whole number"),
    (_args(1, tolerance=6), "at most 5 images, got 6"),
    (_args(1, tolerance=-1), "0 or more"),
    (_args(1, protocol=["x"]), "protocol: expected printable text"),
    (_args(0, dataset_digest="e" * 64), "no clean accuracy"),
    (_repeat_robust, "claimed twice"),
]


@pytest.mark.parametrize(("change", "words"), BAD_METADATA, ids=[words for _, words in BAD_METADATA])
def test_metadata_that_is_no_claim(change, words):
    with pytest.raises(CardError, match=words) as caught:
        Claim.from_card(edited(change))
    assert "robustzoo evaluate" in str(caught.value) and "robustzoo card FOLDER" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no metadata"),
        ("# A card\n\nNo numbers.\n", "no metadata"),
        ("---\nlicense: mit\n", "no metadata"),
        ("---\n---\n", "no metadata"),
        ("---\n\n---\n", "must be a mapping"),
        ("---\n- a\n---\n", "must be a mapping"),
        ("---\n1: a\n---\n", "must be a mapping"),
        ("---\nlicense: mit\n---\n# x\n", "no model-index"),
        ("---\na: [1, 2\n---\n", "not YAML"),
        ("---\na: !!python/object:os.system x\n---\n", "not YAML"),
        ("---\na: " + 5000 * "[" + "\n---\n", "nested"),
        ("---\na: &x [1]\nb: *x\n---\n", "aliases"),
        ("---\nmodel-index: [{name: x, results: []}]\nignore_metadata_errors: true\n---\n", "cannot be read"),
        ("---\na: " + 1_000_001 * "x" + "\n---\n", "characters"),
    ],
    ids=lambda value: repr(value[:30]),
)
def test_text_that_is_no_card(text, words):
    with pytest.raises(CardError, match=words):
        Claim.from_card(text)


@pytest.mark.parametrize(
    ("said", "instead"),
    [
        ("n: 500", "n: 0764"),
        ("n: 500", "n: 8:20"),
        ("n: 500", "n: 5_0_0"),
        ("n: 500", "n: 0x1f4"),
        ("n: 500", "n: 0b111110100"),
        ("n: 500", "n: +500"),
        ("n: 500", "n: 500.0"),
        ("n: 500", "n: 5e2"),
        ("n: 500", "n: 5.0e+2"),
        ("n: 500", "n: 0o764"),
        ("n: 500", 'n: "500"'),
        ("n: 500", "n: !!int '500'"),
        ("n: 500", "n: !!float 500"),
        ("n: 500", "n: true"),
        ("n: 500", "<<: {n: 500}"),
        ("correct: 482", "correct: 7_22"),
        ("correct: 482", "correct: 8:2"),
        ("value: 0.964", "value: .964"),
        ("value: 0.964", "value: 0.96_4"),
        ("seed: 0", "seed: 00"),
        ("tolerance: 5", "tolerance: 05"),
        ("name: vit_micro2.digits_linf.trades_trh", "name: 0764"),
    ],
)
def test_numbers_are_spelled_one_way(said, instead):
    """Readers of YAML 1.1 and 1.2 take the other spellings for different numbers, or for texts."""
    text = card(CLAIM)
    assert said in text
    with pytest.raises(CardError):
        Claim.from_card(text.replace(said, instead))


@pytest.mark.parametrize(
    "metadata",
    [
        "".join(f"k{i}: 1\n" for i in range(110_000)),
        "".join(f"k{i}: 1\n" for i in range(15_000)),
        "? " * 90_000,
    ],
    ids=["110,000 keys", "15,000 keys", "nested keys"],
)
def test_large_metadata_are_read_or_refused_in_a_moment(metadata):
    """Counting each key among all of them took minutes."""
    with pytest.raises(CardError):
        Claim.from_card(f"---\n{metadata}---\n")


def test_what_is_wrong_with_metadata_is_said_on_one_line():
    forged = "---\na: [\nvit: CONFIRMED by full\nb: \u202e\x85}\n---\n"
    with pytest.raises(CardError) as caught:
        Claim.from_card(forged)
    assert caught.value.problem.isprintable()


def test_line_ends_and_byte_order_marks_do_not_matter():
    text = card(CLAIM)
    assert Claim.from_card(text.replace("\n", "\r\n")) == [CLAIM]
    assert Claim.from_card("\ufeff" + text) == [CLAIM]


@pytest.mark.parametrize(
    "changes",
    [
        {"n": 0},
        {"clean_correct": 501},
        {"robust_correct": 483},
        {"n": 500.0},
        {"seed": True},
        {"split": " "},
        {"subset": "a\nb"},
    ],
    ids=repr,
)
def test_impossible_claims(changes):
    with pytest.raises(CardError):
        replace(CLAIM, **changes)


@pytest.mark.parametrize(
    "others",
    [
        [CLAIM],
        [replace(CLAIM, seed=1, robust_correct=406)],
        [replace(CLAIM, protocol="pgd-10", clean_correct=481)],
        [replace(CLAIM, protocol="pgd-10", model_name="other")],
        [replace(CLAIM, protocol="pgd-10", tolerance=50)],
    ],
    ids=["repeated", "two seeds", "two clean counts", "two models", "generous"],
)
def test_claims_that_one_card_cannot_make(others):
    with pytest.raises(CardError):
        card(CLAIM, *others)
