"""best_known: the images that every evaluation left robust, in the card beside the protocols' own numbers."""

from __future__ import annotations

import copy

import pytest

from robustzoo.cards import Claim, Evidence, lint_card, render_card
from robustzoo.cards.evidence_rules import protocol_digest
from robustzoo.cards.holdings import best_known
from robustzoo.cards.metadata import read_block
from robustzoo.registry import recipe

NAME = "vit_micro2.digits_linf.trades_trh"
LICENCE = "apache-2.0"
SHA256 = "c" * 64


@pytest.fixture
def pair(sections):
    """Two protocols on the same 10 images: each leaves 4 robust, 3 of them the same."""
    first = sections()
    second = copy.deepcopy(first)
    members = [{"attack": "square", "iterations": 5000, "restarts": 1, "targets": 0}]
    digest = protocol_digest("square", members)
    second["protocol"] = {"name": "square", "members": members, "digest": digest}
    swap = {9: False, 3: True}  # ids: robust in the first and not here, and the reverse
    for sample in second["samples"]:
        if sample["broken_by"] is not None:
            sample["broken_by"] = {"attack": "square", "target": None, "restart": 0, "iteration": 9}
        if sample["id"] in swap:
            sample["robust"] = swap[sample["id"]]
            found = {"attack": "square", "target": None, "restart": 0, "iteration": 9}
            sample["broken_by"] = None if sample["robust"] else found
    return [Evidence.build(**first), Evidence.build(**second)]


def test_it_is_the_intersection(pair):
    sets = [{v.id for v in e.verdicts if v.robust} for e in pair]
    (found,) = best_known(pair)
    assert found.accuracy.correct == len(sets[0] & sets[1]) == 3 < min(map(len, sets)) == 4
    assert found.protocols == ("apgd-ce+t", "square") and found.subset == "digits test, all"


def test_a_single_evaluation_and_other_terms_have_none(pair, sections):
    assert best_known(pair[:1]) == []
    other = Evidence.build(**sections(threat_model="linf:1/20"))
    assert best_known([pair[0], other]) == []
    dataset = {**sections()["dataset"], "digest": "f" * 64}
    assert best_known([pair[0], Evidence.build(**sections(dataset=dataset))]) == []
    assert len(best_known([*pair, other])) == 1


def test_a_card_states_it_in_text_and_metadata_and_claims_no_more(pair):
    text = render_card(recipe(NAME), pair, SHA256, LICENCE)
    assert "**Best known robust accuracy** at L∞ 1/10 on these images (digits test, all): 3 of 10" in text
    assert "compare it with no AutoAttack result" in " ".join(text.split())
    (stated,) = read_block(text)["robustzoo"]["best_known"]
    assert (stated["correct"], stated["n"], stated["protocols"]) == (3, 10, ["apgd-ce+t", "square"])
    assert [claim.robust_correct for claim in Claim.from_card(text)] == [4, 4]
    assert lint_card(text, recipe(NAME), pair) == []
    edited = text.replace(": 3 of 10", ": 4 of 10")
    assert any("not what recipe and evidence give" in p for p in lint_card(edited, recipe(NAME), pair))
    assert "best_known" not in render_card(recipe(NAME), pair[0], SHA256, LICENCE)
