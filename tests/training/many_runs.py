"""Run train.py once per list of arguments, within one launch: `deepspeed many_runs.py JSON`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from robustzoo.training import validation
from robustzoo.training.__main__ import train as main
from tests.training import tiny_batch_norm

tiny_batch_norm.add()

validation.STEPS, validation.LARGEST = 2, 20  # as the tests in one process have it
for arguments in json.loads(sys.argv[-1]):
    status = main(arguments)
    if status:
        sys.exit(status)
