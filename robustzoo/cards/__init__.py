"""What is claimed: the Evidence of an evaluation, the card that states its numbers, and the checks of both.

Names are resolved on first use, so that listing models stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "Accuracy": "statistics",
    "BrokenBy": "evidence",
    "CardError": "claims",
    "Claim": "claims",
    "Evidence": "evidence",
    "EvidenceError": "evidence",
    "Verdict": "evidence",
    "Witnesses": "witnesses",
    "clopper_pearson": "statistics",
    "lint_card": "check",
    "render_card": "render",
    "wilson": "statistics",
}
__all__ = [
    "Accuracy",
    "BrokenBy",
    "CardError",
    "Claim",
    "Evidence",
    "EvidenceError",
    "Verdict",
    "Witnesses",
    "clopper_pearson",
    "lint_card",
    "render_card",
    "wilson",
]

if TYPE_CHECKING:
    from robustzoo.cards.check import lint_card
    from robustzoo.cards.claims import CardError, Claim
    from robustzoo.cards.evidence import BrokenBy, Evidence, EvidenceError, Verdict
    from robustzoo.cards.render import render_card
    from robustzoo.cards.statistics import Accuracy, clopper_pearson, wilson
    from robustzoo.cards.witnesses import Witnesses


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(
            f"module 'robustzoo.cards' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    return getattr(importlib.import_module(f"robustzoo.cards.{_PUBLIC[name]}"), name)
