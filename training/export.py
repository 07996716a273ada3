"""From a run to its model folder: `python training/export.py RUN`. See robustzoo/training/export.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout

from robustzoo.training.__main__ import export, main

if __name__ == "__main__":
    main(export)
