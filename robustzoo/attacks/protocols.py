"""Protocols: which attacks run, in which order, with which constants. All of it is data, and digested.

Epsilon is no part of a protocol; the norm and the number of classes are, since they choose starts, losses and
targets.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from robustzoo.attacks.members import (
    SINGLE_MEMBERS,
    Member,
    pgd_member,
    plus_member,
    rand_member,
    standard_member,
)
from robustzoo.attacks.projections import NORMS
from robustzoo.registry.digests import json_digest
from robustzoo.registry.threat_model import ThreatModel

RANDOM_MODELS = "aa-rand"
_COMPOSED: dict[str, tuple[Callable[[str, str, int], Member], tuple[str, ...]]] = {
    "aa-standard": (standard_member, ("apgd-ce", "apgd-t", "fab-t", "square")),
    "aa-plus": (plus_member, ("apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t")),
    RANDOM_MODELS: (rand_member, ("apgd-ce", "apgd-dlr")),
    "apgd-ce+t": (standard_member, ("apgd-ce", "apgd-t")),
    "apgd-ce+dlr": (standard_member, ("apgd-ce", "apgd-dlr")),
}
_PGD = re.compile(r"pgd-([1-9]\d{0,4})")


# What other tools call it -> what it is called here.
_MEANT = {
    **dict.fromkeys(("aa", "autoattack", "auto-attack", "standard", "robustbench"), "aa-standard"),
    **dict.fromkeys(("rand", "autoattack-rand"), RANDOM_MODELS),
    **dict.fromkeys(("pgd", "madry"), "pgd-40"),
    **{f"pgd{steps}": f"pgd-{steps}" for steps in (1, 7, 10, 20, 40, 50, 100)},
    **dict.fromkeys(("fgsm", "fgm"), "pgd-1"),
    **dict.fromkeys(("apgd", "autopgd"), "apgd-ce"),
}


class ProtocolError(ValueError):
    """A protocol that does not exist, or not for this norm or number of classes."""


@dataclass(frozen=True)
class Protocol:
    """Members in the order in which they run, each on the samples that are still robust."""

    name: str
    norm: str
    members: tuple[Member, ...]

    @property
    def draws(self) -> int:
        """Forwards whose mean is the answer of a random model; 1 for all other models."""
        return max((member.draws for member in self.members), default=1)

    @property
    def digest(self) -> str:
        """sha256 (hex) of the canonical JSON of what `to_json` says beside it."""
        return json_digest(self._document())

    def to_json(self) -> dict:
        """{"name", "members", "digest"}, as Evidence stores it."""
        return {**self._document(), "digest": self.digest}

    def _document(self) -> dict:
        return {"name": self.name, "members": [{"norm": self.norm, **m.to_json()} for m in self.members]}


def protocol(name: str, threat_model: ThreatModel, num_classes: int) -> Protocol:
    """The protocol called `name` for the norm of `threat_model` and `num_classes` classes.

    Args:
        name: "aa-standard", "aa-plus", "aa-rand" (the only one for a random model), "apgd-ce+t",
            "apgd-ce+dlr", "pgd-K" (K iterations), or one of SINGLE_MEMBERS alone.
        threat_model: its norm counts, linf, l2 or l1; its epsilon does not.
        num_classes: at least 2.

    Raises:
        ProtocolError: unknown name, a norm without attacks, or fewer than 2 classes.
    """
    norm = threat_model.norm
    if norm not in NORMS:
        raise ProtocolError(f"no attacks for norm {norm!r}; expected one of {', '.join(NORMS)}")
    if num_classes < 2:
        raise ProtocolError(f"an attack needs at least 2 classes, got {num_classes}")
    pgd = _PGD.fullmatch(name)
    if pgd:
        return Protocol(name, norm, (pgd_member(name, norm, int(pgd[1])),))
    if name not in _COMPOSED and name not in SINGLE_MEMBERS:
        known = ", ".join((*_COMPOSED, "pgd-K (K = 1 to 99999)", *SINGLE_MEMBERS))
        meant = _MEANT.get(name.lower().replace("_", "-"))
        meant = meant or next((word for word in (*_COMPOSED, *SINGLE_MEMBERS) if word == name.lower()), None)
        hint = f"; did you mean {meant}?" if meant else ""
        raise ProtocolError(f"unknown protocol {name[:80]!r}{hint}; known: {known}")
    make, attacks = _COMPOSED.get(name, (standard_member, (name,)))
    return Protocol(name, norm, tuple(make(attack, norm, num_classes) for attack in attacks))
