"""The Hessian of a scalar loss in named parameters: products, traces and norms, whole and per layer.

Nothing of the size of the Hessian is stored (but for `matrix`): a product H v is the gradient of
(gradient . v), one more pass through the graph of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from robustzoo import keyed_noise
from robustzoo.errors import RobustzooError

Parameters = Mapping[str, Tensor]
LARGEST_MATRIX = 8_000  # parameters; float64, 512 MB
_PURPOSE = "hessian-probe"


@dataclass(frozen=True)
class Estimate:
    """A number and its standard error; the error is 0 for an exact one."""

    value: float
    standard_error: float


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to: its name up to the first number, or its first part.

    "network.blocks.0.attn.qkv.weight" -> "blocks.0", "network.head.bias" -> "head", "2.weight" -> "2".
    """
    parts = name.removeprefix("network.").split(".")
    for i, part in enumerate(parts[:-1]):
        if part.isdigit():
            return ".".join(parts[: i + 1])
    return parts[0]


class LossHessian:
    """The Hessian of `loss` at `parameters`, with respect to those called `names`.

    Args:
        loss: parameters by name -> scalar; twice differentiable where it is evaluated. Called once: the graph
            of its gradient is kept. Fused attention has no second derivative, so the plain one is used.
        parameters: all of them, by name; copied, so that the model's own are left alone.
        names: those that the Hessian is about, in this order; default: all. The others are constants.
        layers: parameter name -> layer.

    Attributes:
        layers: layer -> names of its parameters, in order.
        size: number n of scalars in `names`.

    Raises:
        RobustzooError: an unknown name, no name, or a loss that is no finite scalar.
    """

    def __init__(
        self,
        loss: Callable[[dict[str, Tensor]], Tensor],
        parameters: Parameters,
        names: Sequence[str] | None = None,
        layers: Callable[[str], str] = layer_of,
    ) -> None:
        names = list(parameters) if names is None else list(names)
        unknown = [name for name in names if name not in parameters]
        if unknown or not names:
            raise RobustzooError(
                f"no parameter {unknown[0]!r}; there are: {', '.join(parameters)}"
                if unknown
                else "no parameters to differentiate with respect to; name at least one"
            )
        self._loss, self._layer_of = loss, layers
        self._given = {name: p.detach().clone() for name, p in parameters.items()}
        self.variables = {name: self._given[name].requires_grad_() for name in names}
        self.layers: dict[str, list[str]] = {}
        for name in names:
            self.layers.setdefault(layers(name), []).append(name)
        self.size = sum(p.numel() for p in self.variables.values())
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            value = loss(dict(self._given))
            if value.ndim or not bool(value.isfinite()):
                raise RobustzooError(
                    f"the loss is {value.detach().tolist()}; expected one finite number (a mean over samples)"
                )
            gradients = torch.autograd.grad(
                value, list(self.variables.values()), create_graph=True, allow_unused=True
            )
        self.loss = value.detach()
        self._gradients = dict(zip(self.variables, gradients, strict=True))

    def of_layer(self, layer: str) -> LossHessian:
        """The diagonal block of one layer, as a Hessian of its own.

        Raises:
            RobustzooError: no such layer.
        """
        if layer not in self.layers:
            raise RobustzooError(f"no layer {layer!r}; there are: {', '.join(self.layers)}")
        return LossHessian(self._loss, self._given, self.layers[layer], self._layer_of)

    def sizes(self) -> dict[str, int]:
        """Number of scalars of each layer."""
        return {layer: sum(self.variables[n].numel() for n in names) for layer, names in self.layers.items()}

    def product(self, vector: Parameters) -> dict[str, Tensor]:
        """H v. vector: some or all of the names -> tensors of their shapes; the others count as zero."""
        return self._products({name: v.unsqueeze(0) for name, v in vector.items()}, batched=False)

    def exact_traces(self, chunk: int = 64) -> dict[str, float]:
        """The trace of each layer's block, one product per scalar parameter, `chunk` of them at a time."""
        return {
            layer: sum(
                self._entries(name, torch.arange(self.variables[name].numel()), chunk).sum().item()
                for name in names
            )
            for layer, names in self.layers.items()
        }

    def diagonal(self, positions: Tensor | None = None, chunk: int = 64) -> Tensor:
        """Second derivatives in single parameters, float64 (n,), one product each, `chunk` of them at a time.

        positions: int64 (n,), which of all `size` scalars, counted in the order of `names`; default: all. The
            result is in their ascending order.
        """
        if positions is None:
            positions = torch.arange(self.size)
        positions, first = positions.sort().values, 0
        found = [torch.zeros(0, dtype=torch.float64)]
        for name, variable in self.variables.items():
            inside = (positions >= first) & (positions < first + variable.numel())
            if inside.any():
                found.append(self._entries(name, positions[inside] - first, chunk))
            first += variable.numel()
        return torch.cat(found)

    def _entries(self, name: str, positions: Tensor, chunk: int) -> Tensor:
        """Second derivatives in the scalars of one parameter at these positions, float64 on the CPU."""
        found = []
        for rows, basis in _basis(self.variables[name], chunk, positions):
            columns = self._products({name: basis}, batched=True, wanted=[name])[name].flatten(1)
            found.append(columns[torch.arange(len(rows)), rows].double().cpu())
        return torch.cat(found)

    def probe(self, probes: int, seed: int = 0) -> tuple[dict[str, Estimate], Estimate, Estimate]:
        """Hutchinson's estimates from `probes` vectors z of independent random signs, keyed by the seed.

        Returns:
            (trace of each layer's block, trace of the whole, square Frobenius norm |H|_F^2 of the whole):
            means of z_layer . (H z)_layer, z . H z and |H z|^2, each with its standard error.

        Raises:
            RobustzooError: fewer than 2 probes, which have no standard error.
        """
        if probes < 2:
            raise RobustzooError(f"probes is {probes}; expected at least 2, for a standard error")
        per_layer: dict[str, list[float]] = {layer: [] for layer in self.layers}
        norms = []
        for probe in range(probes):
            z = self.signs(seed, probe)
            products = self.product(z)
            for layer, names in self.layers.items():
                dots = [(z[n].double() * products[n].double()).sum() for n in names]
                per_layer[layer].append(float(torch.stack(dots).sum()))
            norms.append(sum(float(p.double().square().sum()) for p in products.values()))
        whole = [sum(values) for values in zip(*per_layer.values(), strict=True)]
        return {layer: _mean(values) for layer, values in per_layer.items()}, _mean(whole), _mean(norms)

    def signs(self, seed: int, index: int) -> dict[str, Tensor]:
        """A vector of independent random signs, keyed by (seed, index, parameter name)."""
        return {
            name: 2.0
            * keyed_noise.integers(
                seed, torch.tensor([index]), f"{_PURPOSE}/{name}", 2, tuple(p.shape), device=p.device
            )[0].to(p.dtype)
            - 1.0
            for name, p in self.variables.items()
        }

    def matrix(self, chunk: int = 64) -> Tensor:
        """The whole Hessian, (n, n), in the order of `names`; for n up to 8,000.

        Raises:
            RobustzooError: a larger one.
        """
        if self.size > LARGEST_MATRIX:
            raise RobustzooError(
                f"a Hessian of {self.size:,} parameters is too large for a matrix (at most "
                f"{LARGEST_MATRIX:,}); use its extreme eigenvalues, or one layer's block (of_layer)"
            )
        rows = []
        for name, variable in self.variables.items():
            for _, basis in _basis(variable, chunk, torch.arange(variable.numel())):
                products = self._products({name: basis}, batched=True)
                rows.append(torch.cat([p.flatten(1) for p in products.values()], 1))
        matrix = torch.cat(rows)
        return 0.5 * (matrix + matrix.T)

    def _products(
        self, vectors: Parameters, *, batched: bool, wanted: Sequence[str] | None = None
    ) -> dict[str, Tensor]:
        """H v for vectors with a leading dimension; without `batched` it has length 1 and is dropped."""
        names = list(self.variables) if wanted is None else list(wanted)
        targets = [self.variables[name] for name in names]
        used = {
            name: v
            for name, v in vectors.items()
            if self._gradients[name] is not None and self._gradients[name].requires_grad
        }
        found: Sequence[Tensor | None] = [None] * len(targets)
        if used:
            found = torch.autograd.grad(
                [self._gradients[name] for name in used],
                targets,
                [v if batched else v[0] for v in used.values()],
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
        length = next(iter(vectors.values())).shape[:1] if batched else ()
        return {
            name: target.new_zeros(*length, *target.shape) if product is None else product.detach()
            for name, target, product in zip(names, targets, found, strict=True)
        }


def _basis(variable: Tensor, chunk: int, positions: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """These positions (c,) of a parameter and their unit vectors (c, *shape), `chunk` at a time."""
    for rows in positions.to(variable.device).split(chunk):
        basis = variable.new_zeros(len(rows), variable.numel())
        basis[torch.arange(len(rows)), rows] = 1.0
        yield rows, basis.view(len(rows), *variable.shape)


def _mean(values: Sequence[float]) -> Estimate:
    numbers = torch.tensor(values, dtype=torch.float64)
    return Estimate(numbers.mean().item(), (numbers.std() / len(values) ** 0.5).item())
