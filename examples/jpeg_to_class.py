"""From a JPEG to a class: `python examples/jpeg_to_class.py [FILE [MODEL]]`.

Without FILE it writes digit.jpg first: a test digit, enlarged as a camera would see it.
"""

import sys
from pathlib import Path

import torch
from PIL import Image

import robustzoo
from robustzoo.data import load_dataset

NAME = "vit_micro2.digits_linf.trades_trh"


def write_digit(file: Path, position: int = 0) -> int:
    """Write a test digit as a JPEG of 64 x 64 pixels; its class."""
    image, label = load_dataset("digits", split="test")[position]
    Image.fromarray((255 * image[0]).byte().numpy()).resize((64, 64)).save(file, quality=95)
    return label


def classify(file: Path, name: str = NAME) -> list[tuple[str, float]]:
    """(class, probability) of the three most probable classes."""
    model = robustzoo.load(name)
    pixels = model.transform()(file)  # float32 (C, H, W) in [0, 1]: the model normalises inside
    with torch.no_grad():
        probabilities = model(pixels[None]).softmax(dim=1)[0]
    best = probabilities.topk(3)
    return [(model.classes[i], p) for p, i in zip(best.values.tolist(), best.indices.tolist(), strict=True)]


if __name__ == "__main__":
    photograph = Path(sys.argv[1] if len(sys.argv) > 1 else "digit.jpg")
    if len(sys.argv) == 1:
        print(f"wrote {photograph}, a {write_digit(photograph)}")
    for found, probability in classify(photograph, *sys.argv[2:3]):
        print(f"{found:<20} {100 * probability:5.1f} %")
