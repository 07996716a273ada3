"""Objective: a recipe turned into an inner maximisation and the terms of the loss.

One training step is `attack`, one engine call on `inputs`, then `terms`:

    loss = robust loss + lambda(t) * batch mean of Tr Hess  (+ gamma |theta|^2)

With AWP (`ascends`) the gradient is taken at weights perturbed along `ascent`. The last term is the
optimizer's coupled weight decay `Objective.weight_decay`: the gradient of gamma |theta|^2 is 2 gamma theta,
so the update is that of the printed objective at no cost. In a TrH recipe gamma takes the place of `l2_reg`;
they never add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from robustzoo import keyed_noise
from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.pgd import at_least_float32, pgd, uniform_start
from robustzoo.errors import RobustzooError
from robustzoo.models.batch_norm import apart, kept_buffers
from robustzoo.models.pixel_model import FeaturesAndLogits, PixelModel
from robustzoo.objectives import trace_of_hessian
from robustzoo.objectives.extension import Defence, Seen, brought_defences, brought_loss
from robustzoo.objectives.label_information import consistency, label_start
from robustzoo.objectives.lambda_schedules import SCHEDULES
from robustzoo.objectives.losses import cross_entropy, kl_divergence, log_softmax, smoothed
from robustzoo.objectives.robust_losses import LOSSES
from robustzoo.objectives.sharpness import sam
from robustzoo.objectives.weight_perturbation import perturbations, perturbed_parameters
from robustzoo.registry.extensions import is_outside
from robustzoo.registry.threat_model import ThreatModel

if TYPE_CHECKING:
    from robustzoo.registry import Recipe

DEFENCES = ("trh", "s2o", "awp", "swa")
PURPOSE = "train-attack"
GAUSSIAN_START = 0.001  # standard deviation in pixel units; source: the TRADES release


class ObjectiveError(ValueError):
    """A recipe that asks for something no objective offers."""

    def __init__(self, field: str, value: object, choices: tuple[str, ...]) -> None:
        super().__init__(f"no objective for {field} {value!r}; this version offers {', '.join(choices)}")


class Objective:
    """A loss (AT, TRADES, ALP, MART), alone or with the trace of the Hessian or S2O, and with AWP.

    Weight averaging (SWA) changes no gradient and stands outside: `weight_averaging.WeightAverage`.

    Args:
        recipe: what to train; read once, never changed.

    Attributes:
        recipe: the same.
        needs_clean: whether the loss looks at clean images too: `inputs` then has 2B rows.
        weight_decay: coupled weight decay for the optimizer, 2 gamma (TrH) or 2 l2_reg (else), >= 0.

    Raises:
        ObjectiveError: a loss, defence, attack or schedule of the recipe has no objective in this version.
    """

    def __init__(self, recipe: Recipe) -> None:
        if not is_outside(recipe.loss):
            _require("loss", recipe.loss, tuple(LOSSES))
        for defence in filter(lambda key: not is_outside(key), recipe.defences):
            _require("defence", defence, DEFENCES)
        _require("attack_start", recipe.attack_start, ("uniform", "gaussian", "label"))
        _require("attack_loss", recipe.attack_loss, ("ce", "kl"))
        self.recipe = recipe
        self.has_trh = "trh" in recipe.defences
        if self.has_trh:
            _require("trh_schedule", recipe.trh_schedule, tuple(SCHEDULES))
        self._brought_loss, self._more = brought_loss(recipe), [*_own(recipe), *brought_defences(recipe)]
        self._movers = [defence.moves for defence in self._more if defence.moves is not None]
        if len(self._movers) + (recipe.awp_delta is not None) > 1:
            raise RobustzooError(
                f"two of the defences of {recipe.name} move the weights: train with one of them"
            )
        self.needs_clean = self.pairs or recipe.s2o_weight is not None
        clean = [defence for defence in self._more if defence.needs_clean]
        if recipe.consistency_weight and len(clean) > 1:
            raise RobustzooError(
                f"{recipe.name} has a defence that looks at clean images, and with consistency_weight the "
                "start of the attack takes their place: set consistency_weight=0"
            )
        self.needs_clean = self.needs_clean or bool(clean)
        self.weight_decay = 2.0 * (recipe.trh_gamma if self.has_trh else recipe.l2_reg)

    @property
    def pairs(self) -> bool:
        """Whether the loss alone looks at clean images."""
        return self.recipe.loss != "at" if self._brought_loss is None else self._brought_loss.needs_clean

    def attack(
        self, model: nn.Module, x: Tensor, y: Tensor, *, step: int, seed: int, epochs: Tensor, ids: Tensor
    ) -> Tensor:
        """The recipe's inner maximisation, in eval mode with frozen weights; the model is left as it was.

        The start is keyed by (seed, sample id, epoch), so that x_adv does not depend on the order or grouping
        of the samples, nor on resuming. TRADES' clean softmax is computed once.

        Args:
            model: pixels to logits; under DeepSpeed `engine.module`, never the engine.
            x: (B, C, H, W) in [0, 1], after augmentation.
            y: (B,) int64, or soft labels, float (B, K).
            step: 0-based optimizer step, for the radius.
            epochs: (B,) int64, the pass over the data in which each sample is drawn.
            ids: (B,) int64 sample ids.

        Returns:
            x_adv: (B, C, H, W) float32, detached, in the ball of `threat_model(step)` and in [0, 1].
        """
        return self.attacked(model, x, y, step=step, seed=seed, epochs=epochs, ids=ids)[1]

    def attacked(
        self, model: nn.Module, x: Tensor, y: Tensor, *, step: int, seed: int, epochs: Tensor, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What `inputs` takes: x, or where the recipe has a consistency term the start of the attack, and
        `attack`."""
        recipe, threat_model = self.recipe, self.threat_model(step)
        x = at_least_float32(x.detach())
        with frozen(model):
            start = self._start(model, x, y, threat_model, seed, epochs, ids)
            x_adv = pgd(
                model,
                x,
                self._attack_loss(model, x, y),
                threat_model=threat_model,
                steps=recipe.attack_steps,
                step_size=recipe.attack_step_ratio * threat_model.eps / recipe.attack_steps,
                x_start=start,
            )
        return (start if recipe.consistency_weight else x), x_adv

    def threat_model(self, step: int) -> ThreatModel:
        """What step `step` (0-based) trains against: the radius grows linearly to the recipe's epsilon, which
        it has from step `attack_warmup_steps` - 1 on. Source: ours, see docs/decisions.md."""
        full, warmup = self.recipe.threat_model, self.recipe.attack_warmup_steps
        if step + 1 >= warmup:
            return full
        return ThreatModel(full.norm, full.epsilon * Fraction(step + 1, warmup))

    def inputs(self, x: Tensor, x_adv: Tensor) -> Tensor:
        """What the engine sees, in one call: x_adv (B, ...), or clean then adversarial rows (2B, ...)."""
        return torch.cat((x.to(x_adv.dtype), x_adv)) if self.needs_clean else x_adv

    def module(self, model: PixelModel) -> FeaturesAndLogits:
        """What training passes go through: its outputs are what `terms` takes."""
        return FeaturesAndLogits(model, 2 if self.needs_clean else 1, self.recipe.trh_form == "relative")

    def terms(
        self, features: Tensor, logits: Tensor, y: Tensor, *, step: int, head_square: Sequence[Tensor] = ()
    ) -> dict[str, Tensor]:
        """Batch means of the loss terms, scalars in float32 at least, with gradients.

        Args:
            features: penultimate features of `inputs`, (B, d) or (2B, d) with the clean rows first.
            logits: (B, K) or (2B, K), likewise.
            y: (B,) int64, or soft labels, float (B, K).
            step: 0-based optimizer step t, for lambda(t).
            head_square: the rest of `module`'s outputs.

        Returns:
            total (to minimise, without the weight decay), robust and its parts (`robust_losses`); TrH: trace,
            the mean trace, and trh = lambda(t) * trace.

        Raises:
            ValueError: not as many rows as `inputs` gives.
            SoftLabelError: soft labels with MART, which needs one class an image.
        """
        rows = len(y) * (2 if self.needs_clean else 1)
        if len(features) != rows or len(logits) != rows:
            raise ValueError(
                f"expected {rows} rows of features and logits for {len(y)} labels, "
                f"got {len(features)} and {len(logits)}: run Objective.inputs through the model"
            )
        f, fa = features.chunk(2) if self.needs_clean else (None, features)
        g, ga = logits.chunk(2) if self.needs_clean else (None, logits)
        seen = Seen(fa, ga, f, g, self._targets(y), step)
        terms = self._loss(seen)
        total = terms["robust"]
        if self.has_trh:
            terms["trace"] = self._trace(f, g, fa, ga, y).mean()
            weights = features.shape[1] * logits.shape[1]
            terms["trh"] = self.trh_lambda(step) * self._formed(terms["trace"], weights, head_square)
            total = total + terms["trh"]
        for defence in self._more:
            more = {} if defence.terms is None else dict(defence.terms(seen))
            if taken := sorted(more.keys() & {"total", *terms}):
                raise RobustzooError(f"two parts of {self.recipe.name} have a term {taken[0]!r}: rename one")
            total, terms = sum(more.values(), start=total), terms | more
        return {"total": total, **terms}

    def _loss(self, seen: Seen, s2o: bool = True) -> dict[str, Tensor]:
        """The terms of the robust loss, with or without S2O."""
        if self._brought_loss is None:
            return LOSSES[self.recipe.loss](self.recipe, seen.clean_logits, seen.logits, seen.y, s2o)
        terms = dict(self._brought_loss.terms(seen))
        if "robust" not in terms:
            raise RobustzooError(
                f"loss {self.recipe.loss} gave the terms {sorted(terms)}; expected robust too"
            )
        return terms

    def ascends(self, step: int) -> bool:
        """Whether step `step` (0-based) perturbs the weights: AWP after its warm-up, or another defence."""
        if self._movers:
            return True
        return self.recipe.awp_delta is not None and step >= self.recipe.awp_warmup_steps

    @property
    def moves_weights(self) -> bool:
        """Whether any step does."""
        return bool(self._movers) or self.recipe.awp_delta is not None

    def moves(self, parameters: Sequence[Tensor], directions: Sequence[Tensor]) -> Iterable[Tensor]:
        """What is added to the weights that `ascent` gave, along the mean of its gradients over the batch."""
        if self._movers:
            return self._movers[0](parameters, directions)
        return perturbations(parameters, directions, self.recipe.awp_delta)

    def ascent(
        self, model: nn.Module, x: Tensor, x_adv: Tensor, y: Tensor, step: int = 0
    ) -> tuple[list[nn.Parameter], list[Tensor]]:
        """The weights to move, and the gradient of what is climbed for each: one forward and backward.

        AWP climbs the loss alone: without S2O, as in its release, and without the trace (ours: the paper does
        not combine the two). Other defences climb the whole objective, along all weights. With several ranks
        average the gradients first, or weights part.

        Args:
            model: PixelModel with `features` and `head`; under DeepSpeed `engine.module`'s, never the engine.
            x, x_adv: (B, C, H, W); y: (B,) int64 or (B, K).
        """
        if self._movers:
            parameters = [weight for weight in model.parameters() if weight.requires_grad]
            with kept_buffers(model):
                made = self.module(model)(self.inputs(x, x_adv))
                loss = self.terms(*made[:2], y, step=step, head_square=made[2:])["total"]
                return parameters, list(torch.autograd.grad(loss, parameters, materialize_grads=True))
        parameters, paired = perturbed_parameters(model), self.pairs
        images = torch.cat((x.to(x_adv.dtype), x_adv)) if paired else x_adv
        # Its release climbs on a copy of the network: running statistics learn nothing of this pass.
        with kept_buffers(model):
            logits = apart(model, model, images, 2 if paired else 1)
            g, ga = logits.chunk(2) if paired else (None, logits)
            loss = self._loss(Seen(ga, ga, g, g, self._targets(y), step), s2o=False)["robust"]
            return parameters, list(torch.autograd.grad(loss, parameters, materialize_grads=True))

    def trh_lambda(self, step: int) -> float:
        """lambda(t) at optimizer step t = `step` (0-based) of `total_steps`; 0 without TrH."""
        if not self.has_trh:
            return 0.0
        return self.recipe.trh_lambda * SCHEDULES[self.recipe.trh_schedule](step, self.recipe.total_steps)

    @torch.no_grad()
    def l2_term(self, weights: Iterable[Tensor]) -> Tensor:
        """gamma |theta|^2 (or l2_reg |theta|^2) over these weights, a float32 scalar to log, no gradient."""
        squares = [at_least_float32(weight).square().sum() for weight in weights]
        return 0.5 * self.weight_decay * torch.stack(squares).sum()

    def _targets(self, y: Tensor) -> Tensor:
        """The labels of the outer loss, soft ones with label smoothing. The attack keeps to the class."""
        share = self.recipe.label_smoothing
        if not share:
            return y
        return smoothed(y, self.recipe.num_classes, share, random=self.recipe.random_smoothing)

    def _formed(self, trace: Tensor, weights: int, head_square: Sequence[Tensor]) -> Tensor:
        """What lambda weighs: the trace itself; 2 gamma N log(1 + trace / (2 gamma N)), which is the bound's
        N / (2 beta) log(1 + sigma0^2 beta trace / N) over lambda (`diagnostics.bound`: sigma0^2 = 2 lambda,
        beta = 1 / (4 lambda gamma)); or relative flatness, the trace times the head's square norm (Petzka et
        al. 2021). The log is of the mean over a micro-batch."""
        if self.recipe.trh_form == "relative":
            return trace * head_square[0]
        if self.recipe.trh_form == "log":
            scale = 2.0 * self.recipe.trh_gamma * weights
            return scale * torch.log1p(trace / scale)
        return trace

    def _trace(self, f: Tensor | None, g: Tensor | None, fa: Tensor, ga: Tensor, y: Tensor) -> Tensor:
        """Tr Hess of the loss in the top-layer weight, per sample (B,)."""
        recipe = self.recipe
        if recipe.loss == "at":
            return trace_of_hessian.at(fa, ga)
        if recipe.loss == "mart":
            return trace_of_hessian.mart(
                f, g, fa, ga, y, recipe.loss_weight, recipe.mart_bce_input, recipe.trh_stop_gradient
            )
        of = trace_of_hessian.trades if recipe.loss == "trades" else trace_of_hessian.alp
        return of(f, g, fa, ga, recipe.loss_weight, recipe.trh_stop_gradient)

    def _attack_loss(self, model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Tensor], Tensor]:
        if self.recipe.attack_loss == "ce":
            return lambda logits: cross_entropy(logits, y)
        with torch.no_grad():
            log_s = log_softmax(model(x))
        return lambda logits: kl_divergence(log_s, log_softmax(logits))

    def _start(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        threat_model: ThreatModel,
        seed: int,
        epochs: Tensor,
        ids: Tensor,
    ) -> Tensor:
        if self.recipe.attack_start == "label":
            noise = {"seed": seed, "ids": ids, "index": epochs}
            return label_start(model, x, y, self.recipe.num_classes, threat_model, noise=noise)
        if self.recipe.attack_start == "uniform":
            return uniform_start(x, threat_model, seed=seed, ids=ids, purpose=PURPOSE, index=epochs)
        shape = tuple(x.shape[1:])
        return x + GAUSSIAN_START * keyed_noise.normal(
            seed, ids, PURPOSE, shape, index=epochs, device=x.device
        ).to(x.dtype)


def _own(recipe: Recipe) -> list[Defence]:
    """The defences that fields of a recipe ask for, through the interface that packages have."""
    made = []
    if recipe.sam_rho is not None:
        made.append(sam(recipe.sam_rho, recipe.sam_adaptive))
    if recipe.consistency_weight:
        made.append(consistency(recipe.consistency_weight, recipe.total_steps))
    return made


def _require(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ObjectiveError(field, value, choices)
