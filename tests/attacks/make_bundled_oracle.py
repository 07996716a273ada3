"""Make `bundled_oracle.json`: what the reference AutoAttack (pyautoattack) leaves robust of a bundled model.

    pip install 'robustzoo[crosscheck]'
    python tests/attacks/make_bundled_oracle.py

Every attack runs alone on the first 60 correctly classified test digits, APGD with three seeds.
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import torch
from pyautoattack import AutoAttack

import robustzoo
from robustzoo.data import load_dataset

NAME, IMAGES = "vit_micro2.digits_linf.at_trh", 60
SEEDS = {"apgd-ce": (0, 1, 2), "apgd-t": (0,), "fab-t": (0,), "square": (0,)}


def main() -> None:
    """Run the reference and write the file beside this script."""
    torch.set_num_threads(1)
    model, data = robustzoo.load(NAME), load_dataset("digits", split="test")
    ids, images, labels = [], [], []
    for index in range(len(data)):
        x, y = data[index]
        if len(ids) < IMAGES and model(x[None]).argmax().item() == y:
            ids.append(index)
            images.append(x)
            labels.append(y)
    x, y = torch.stack(images), torch.tensor(labels)
    verdicts = {}
    for attack, seeds in SEEDS.items():
        verdicts[attack] = []
        for seed in seeds:
            reference = AutoAttack(
                model, norm="Linf", eps=model.threat_model.eps, seed=seed, version="standard"
            )
            reference.attacks_to_run = [attack]
            x_adv, _ = reference.run_standard_evaluation(x, y, batch_size=IMAGES)
            with torch.no_grad():
                robust = model(x_adv.clamp(0, 1)).argmax(1) == y
            verdicts[attack].append([int(flag) for flag in robust])
            print(f"{attack} seed {seed}: {int(robust.sum())} of {IMAGES} robust", flush=True)
    document = {
        "model": NAME,
        "threat_model": str(model.threat_model),
        "reference": f"pyautoattack {version('pyautoattack')}",
        "ids": ids,
        "robust": verdicts,
    }
    Path(__file__).with_name("bundled_oracle.json").write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
