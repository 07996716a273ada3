"""A zoo model under other people's attacks: `python examples/other_attacks.py LIBRARY`.

A PixelModel is a torch module from pixels in [0, 1] to logits, normalisation inside: that is what these
libraries ask for. What they find is their number, under their name; none of it is Evidence.
"""

import sys

import torch
from linear_probe import digits
from torch import Tensor, nn

import robustzoo

EPS = 0.1


def torchattacks(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    import torchattacks as library

    attack = library.PGD(model, eps=EPS, alpha=EPS / 4, steps=10, random_start=True)
    return attack(x, y)  # mean 0 and std 1 by default: nothing to normalise


def pyautoattack(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    import pyautoattack as library

    suite = library.AutoAttack(model, norm="Linf", eps=EPS, device="cpu", seed=0, version="standard")
    return suite.apgd.perturb(x, y)


def foolbox(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    import foolbox as library

    wrapped = library.PyTorchModel(model, bounds=(0, 1), device="cpu")  # no preprocessing
    attack = library.attacks.LinfPGD(rel_stepsize=0.25, steps=10)
    return attack(wrapped, x, y, epsilons=EPS)[1]


def art(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    from art.attacks.evasion import ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier

    wrapped = PyTorchClassifier(
        model,
        loss=nn.CrossEntropyLoss(),
        input_shape=model.input_shape,
        nb_classes=model.num_classes,
        clip_values=(0.0, 1.0),
        device_type="cpu",
    )
    attack = ProjectedGradientDescent(wrapped, eps=EPS, eps_step=EPS / 4, max_iter=10, verbose=False)
    return torch.from_numpy(attack.generate(x.numpy(), y.numpy()))


LIBRARIES = {function.__name__: function for function in (torchattacks, pyautoattack, foolbox, art)}


def main(library: str, name: str = "vit_micro2.digits_linf.at_base", n: int = 20) -> float:
    """Share of n test images whose answer stays at the points that the library finds."""
    model = robustzoo.load(name)
    model.validate_pixels = False  # they clamp by themselves, to within rounding
    x, _ = (part[:n] for part in digits("test"))
    with torch.no_grad():
        y = model(x).argmax(1)  # attack the model's own answers
    found = LIBRARIES[library](model, x, y).detach().float()
    assert (found - x).abs().max() <= EPS + 1e-5 and found.min() >= 0 and found.max() <= 1
    with torch.no_grad():
        return model(found).argmax(1).eq(y).double().mean().item()


if __name__ == "__main__":
    print(f"{sys.argv[1]} at linf:{EPS}: {main(sys.argv[1]):.0%} of the answers stay")
