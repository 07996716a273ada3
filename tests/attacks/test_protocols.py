"""Protocols are data: names, members, constants, digests."""

from __future__ import annotations

import json
import pickle

import pytest

from robustzoo.attacks.autoattack import SEARCHES
from robustzoo.attacks.protocols import SINGLE_MEMBERS, ProtocolError, protocol
from robustzoo.registry.threat_model import ThreatModel

LINF, L2 = ThreatModel.parse("linf:8/255"), ThreatModel.parse("l2:0.5")
NAMES = ("aa-standard", "apgd-ce+t", "apgd-ce+dlr", "pgd-20", *SINGLE_MEMBERS)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("threat_model", [LINF, L2], ids=str)
def test_every_protocol_is_json_and_runs_known_algorithms(name, threat_model):
    p = protocol(name, threat_model, 10)
    document = p.to_json()
    assert document == json.loads(json.dumps(document))
    assert (document["name"], len(document["digest"])) == (name, 64)
    assert pickle.loads(pickle.dumps(p)) == p, "worker processes receive it"
    assert all(member.algorithm in SEARCHES for member in p.members)


def test_members_and_constants_of_aa_standard():
    members = protocol("aa-standard", LINF, 10).members
    assert [m.attack for m in members] == ["apgd-ce", "apgd-t", "fab-t", "square"]
    assert [m.iterations for m in members] == [100, 100, 100, 5000]
    assert [m.attempts for m in members] == [1, 9, 9, 1]
    assert dict(members[2].constants) == {"alpha_max": 0.1, "eta": 1.05, "beta": 0.9, "start": "clean"}


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
    (t,) = protocol("apgd-t", LINF, classes).members
    assert (t.targets, t.loss) == (targets, targeted)
    assert protocol("fab-t", LINF, classes).members[0].targets == targets
    assert protocol("apgd-dlr", LINF, classes).members[0].loss == untargeted


@pytest.mark.parametrize(
    "name, threat_model, classes, message",
    [
        ("aa-standart", LINF, 10, "unknown protocol 'aa-standart'; known: aa-standard"),
        ("pgd-0", LINF, 10, "unknown protocol"),
        ("pgd-", LINF, 10, "unknown protocol"),
        ("aa-plus", LINF, 10, "later version"),
        ("aa-standard", ThreatModel.parse("l1:12"), 10, "later version"),
        ("aa-standard", LINF, 1, "at least 2 classes"),
    ],
)
def test_refusals(name, threat_model, classes, message):
    with pytest.raises(ProtocolError, match=message):
        protocol(name, threat_model, classes)
