"""Which search runs an attack's algorithm."""

from __future__ import annotations

from robustzoo.attacks.apgd import APGD, APGDL1
from robustzoo.attacks.fab import FAB, UntargetedFAB
from robustzoo.attacks.lanes import Search
from robustzoo.attacks.malt import MALT, MALTL1
from robustzoo.attacks.pgd import PGD
from robustzoo.attacks.square import Square

SEARCHES: dict[str, type[Search]] = {
    "apgd": APGD,
    "apgd-l1": APGDL1,
    "malt": MALT,
    "malt-l1": MALTL1,
    "fab": FAB,
    "fab-untargeted": UntargetedFAB,
    "square": Square,
    "pgd": PGD,
}
