"""Protocols are data: names, attacks, constants, digests."""

from __future__ import annotations

import json
import pickle

import pytest

from robustzoo.attacks.apgd import phase_lengths
from robustzoo.attacks.protocols import SINGLE_ATTACKS, ProtocolError, protocol
from robustzoo.attacks.searches import SEARCHES
from robustzoo.registry.threat_model import ThreatModel

LINF, L2, L1 = (ThreatModel.parse(text) for text in ("linf:8/255", "l2:0.5", "l1:12"))
NAMES = ("aa-standard", "aa-plus", "aa-rand", "apgd-ce+t", "apgd-ce+dlr", "pgd-20", *SINGLE_ATTACKS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("threat_model", [LINF, L2, L1], ids=str)
def test_every_protocol_is_json_and_runs_known_algorithms(name, threat_model):
    p = protocol(name, threat_model, 10)
    document = p.to_json()
    assert document == json.loads(json.dumps(document))
    assert (document["name"], len(document["digest"])) == (name, 64)
    assert pickle.loads(pickle.dumps(p)) == p, "worker processes receive it"
    assert all(attack.algorithm in SEARCHES for attack in p.attacks)


def test_attacks_and_constants_of_aa_standard():
    attacks = protocol("aa-standard", LINF, 10).attacks
    assert [m.name for m in attacks] == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert [m.iterations for m in attacks] == [100, 100, 100, 5000]
    assert [m.attempts for m in attacks] == [1, 9, 9, 1]
    assert dict(attacks[2].constants) == {"alpha_max": 0.1, "eta": 1.05, "beta": 0.9, "start": "clean"}


def test_attacks_of_aa_standard_for_l1():
    """Croce & Hein 2021: 5 restarts, 5 targets, and three phases of growing budgets."""
    attacks = protocol("aa-standard", L1, 10).attacks
    assert [m.name for m in attacks] == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert [(m.restarts, m.targets) for m in attacks] == [(5, 0), (1, 5), (1, 9), (1, 0)]
    assert [phase_lengths(m) for m in attacks[:2]] == [[30, 30, 40]] * 2
    assert attacks[0].constants["phase_factors"] == [3.0, 2.0, 1.0]


@pytest.mark.parametrize("threat_model", [LINF, L2, L1], ids=str)
def test_attacks_of_aa_plus_and_aa_rand(threat_model):
    attacks = protocol("aa-plus", threat_model, 10).attacks
    assert [m.name for m in attacks] == ["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"]
    assert [(m.restarts, m.targets) for m in attacks] == [(5, 0), (5, 0), (5, 0), (1, 0), (1, 9), (1, 9)]
    rand = protocol("aa-rand", threat_model, 10).attacks
    assert [(m.name, m.draws, m.restarts) for m in rand] == [("apgd-ce", 20, 1), ("apgd-dlr", 20, 1)]
    if threat_model is L1:
        assert all(phase_lengths(m) == [100] for m in (*attacks[:2], attacks[4], *rand))


def test_no_autoattack_protocol_has_an_attack_of_our_own():
    for name in (n for n in NAMES if n.startswith("aa-")):
        assert "apgd-malt" not in {m.name for m in protocol(name, LINF, 10).attacks}


def test_digests_of_published_evidence_stay():
    """Evidence in the wild names them: a change of constants is another protocol."""
    digest = protocol("aa-standard", LINF, 10).digest
    assert digest.startswith("c07e813f002c54bb")
    assert protocol("aa-standard", L2, 10).digest.startswith("1ba35ac9a7e1ada3")


def test_digest_covers_what_decides_the_attack_but_not_epsilon():
    base = protocol("aa-standard", LINF, 10).digest
    assert base == protocol("aa-standard", ThreatModel.parse("linf:0.1"), 100).digest
    digests = {base, protocol("aa-standard", L2, 10).digest, protocol("aa-standard", LINF, 3).digest}
    assert len(digests | {protocol(n, LINF, 10).digest for n in NAMES}) == 2 + len(NAMES)


@pytest.mark.parametrize(
    "classes, targets, targeted, untargeted",
    [
        (2, 1, "targeted-margin", "margin"),
        (3, 2, "targeted-margin", "dlr"),
        (4, 3, "targeted-dlr", "dlr"),
        (10, 9, "targeted-dlr", "dlr"),
        (1000, 9, "targeted-dlr", "dlr"),
    ],
)
def test_targets_and_losses_follow_the_number_of_classes(classes, targets, targeted, untargeted):
    (t,) = protocol("apgd-t", LINF, classes).attacks
    assert (t.targets, t.loss) == (targets, targeted)
    assert protocol("fab-t", LINF, classes).attacks[0].targets == targets
    assert protocol("apgd-dlr", LINF, classes).attacks[0].loss == untargeted


@pytest.mark.parametrize(
    "name, threat_model, classes, message",
    [
        ("aa-standart", LINF, 10, "unknown protocol 'aa-standart'; known: aa-standard"),
        ("pgd-0", LINF, 10, "unknown protocol"),
        ("pgd-", LINF, 10, "unknown protocol"),
        ("aa-standard", LINF, 1, "at least 2 classes"),
    ],
)
def test_refusals(name, threat_model, classes, message):
    with pytest.raises(ProtocolError, match=message):
        protocol(name, threat_model, classes)
