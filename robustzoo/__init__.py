"""robustzoo: robust vision models whose clean and AutoAttack numbers anyone can re-check.

Importing this package is cheap: torch, timm and the network are touched only by the call that needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that defines it, resolved on first use (PEP 562).
_PUBLIC = {
    "ThreatModel": "robustzoo.registry.threat_model",
    "attack": "robustzoo.evaluation.evaluate",
    "compare": "robustzoo.reports.comparison",
    "evaluate": "robustzoo.evaluation.evaluate",
    "list_models": "robustzoo.registry.lookup",
    "load": "robustzoo.hub.load",
    "recipe": "robustzoo.registry.lookup",
    "report": "robustzoo.reports.text",
    "verify": "robustzoo.hub.load",
}
__all__ = [
    "ThreatModel",
    "__version__",
    "attack",
    "compare",
    "evaluate",
    "list_models",
    "load",
    "recipe",
    "report",
    "verify",
]

if TYPE_CHECKING:
    from robustzoo.evaluation.evaluate import attack, evaluate
    from robustzoo.hub.load import load, verify
    from robustzoo.registry.lookup import list_models, recipe
    from robustzoo.registry.threat_model import ThreatModel
    from robustzoo.reports.comparison import compare
    from robustzoo.reports.text import report


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(
            f"module 'robustzoo' has no attribute {name!r}; public names: {', '.join(__all__)}"
        )
    value = getattr(importlib.import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
