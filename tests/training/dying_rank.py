"""train.py on a rank of which the second is killed before its third optimizer step."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from robustzoo.training import zero
from robustzoo.training.__main__ import train
from tests.training.kills import die_at

if os.environ["RANK"] == "1":
    die_at(zero, "optimizer_step", "before", 3)
sys.exit(train(sys.argv[1:]))
