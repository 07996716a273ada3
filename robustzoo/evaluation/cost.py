"""What an evaluation will cost, before it starts: passes from the protocol, seconds from a short trial."""

from __future__ import annotations

from torch import Tensor, nn

from robustzoo.attacks.protocols import Protocol
from robustzoo.evaluation import machine
from robustzoo.evaluation.progress import estimate
from robustzoo.evaluation.work import Work


def cost_line(
    model: nn.Module,
    x: Tensor,
    work: Work,
    count: int,
    workers: int,
    measured: tuple[float, float] | None = None,
) -> str:
    """What the run costs at most, in passes and (from a short trial on `x: (C, H, W)`) in seconds.

    Args:
        measured: seconds of a forward and of a backward of a micro-batch, where a trial has been made.
    """
    forwards, backwards = passes_at_most(work.protocol)
    if measured is None:
        batch = x.expand(work.micro_batch_size, *x.shape).to(work.device)
        measured = machine.seconds_per_pass(model, batch, gradients=backwards > 0)
    seconds = seconds_at_most((forwards, backwards), count, work, workers, measured)
    return (
        f"{work.protocol.name} on {count} images: at most {count * forwards:,} forwards and "
        f"{count * backwards:,} backwards, {estimate(seconds)} if all stay robust "
        f"({workers} process{'es, their start aside' if workers > 1 else ''}, "
        f"micro-batch {work.micro_batch_size}, "
        f"{work.device})"
    )


def seconds_at_most(
    passes: tuple[int, int], count: int, work: Work, workers: int, measured: tuple[float, float]
) -> float:
    """What `count` samples of so many (forwards, backwards) each take; `measured`: of a micro-batch."""
    batches = max(count / work.micro_batch_size / workers, 1.0)  # one that is mostly padding costs as much
    return (passes[0] * measured[0] + passes[1] * measured[1]) * batches


def passes_at_most(protocol: Protocol) -> tuple[int, int]:
    """(forwards, backwards) that a sample costs at most.

    One forward for the clean image and one for the second look at the point that breaks it (each for every
    draw of a random model), and what every member needs: see `Member.passes`.
    """
    passes = [member.passes for member in protocol.members]
    return 2 * protocol.draws + sum(forward for forward, _ in passes), sum(backward for _, backward in passes)
