"""Adversarially train a model of the zoo, from its registry name, and export it.

    python training/train.py vit_micro2.digits_linf.at_trh --out RUN                             (one process)
    deepspeed --num_accelerators 2 training/train.py vit_micro2.digits_linf.at_trh --out RUN

What it does: robustzoo/training/train.py. Without a checkout: deepspeed --module robustzoo.training NAME.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the checkout

from robustzoo.training.__main__ import main

if __name__ == "__main__":
    main()
