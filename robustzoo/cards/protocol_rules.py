"""Facts about the protocol that an Evidence states: its digest, and what its attacks can have done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from robustzoo.registry.digests import json_digest


def protocol_digest(name: str, members: list[dict[str, Any]]) -> str:
    """sha256 (hex) of the canonical JSON of a protocol's name and all parameters of its attacks."""
    return json_digest({"name": name, "members": members})


def protocol_problems(protocol: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, problem) where the digest is not that of the name and the members, or a name comes twice."""
    digest = protocol_digest(protocol["name"], protocol["members"])
    if digest != protocol["digest"]:
        yield "protocol.digest", f"{protocol['digest']} stated, name and members give {digest}"
    attacks = [member["attack"] for member in protocol["members"]]
    for i, attack in enumerate(attacks):
        if attack in attacks[:i]:
            yield f"protocol.members[{i}].attack", f"{attack} is named twice"


def success_problems(broken_by: dict[str, Any], member: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(field, problem) where `member` cannot have had such a success."""
    attack, restarts, targets = member["attack"], member["restarts"], member["targets"]
    if broken_by["restart"] >= restarts:
        yield "restart", f"restart {broken_by['restart']} of {attack}, which has {restarts} (from 0)"
    if (broken_by["target"] is None) != (targets == 0):
        kind = f"{targets} targets" if targets else "none"
        yield "target", f"target {broken_by['target']} of {attack}, which has {kind}"
    # Every phase of an L1 attack looks at one point more than it has iterations.
    last = member["iterations"] + len(member.get("phase_factors", [1.0])) - 1
    if broken_by["iteration"] > last:
        yield "iteration", f"iteration {broken_by['iteration']} of {attack}, whose last is {last}"
