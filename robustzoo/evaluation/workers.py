"""Several processes share one evaluation; the verdicts are those that a single process gives."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustzoo.attacks.autoattack import SampleResult, run_protocol
from robustzoo.attacks.frozen import frozen
from robustzoo.attacks.protocols import Protocol, protocol
from robustzoo.evaluation.machine import placed, strict_arithmetic
from robustzoo.registry import ThreatModel

_NAME = "robustzoo worker"
_GUARD = (
    "a script that calls evaluate with workers > 1 must do so under `if __name__ == '__main__':`, since each "
    "worker process imports the script anew"
)


class WorkerError(RuntimeError):
    """A worker process failed or was killed; no result is used."""


def refuse_in_worker() -> None:
    """Stop a worker process in which the user's script runs a second time, before it computes anything.

    Raises:
        WorkerError: this process is a worker.
    """
    if multiprocessing.current_process().name.startswith(_NAME):
        raise WorkerError(f"this process is a worker of an evaluation, not the one that called it: {_GUARD}")


@dataclass(frozen=True)
class Work:
    """Everything a process needs beside the model: what to attack and how. Arguments as of `run_protocol`."""

    dataset: Any
    protocol_name: str
    threat_model: ThreatModel
    num_classes: int
    seed: int
    micro_batch_size: int
    device: str

    @property
    def protocol(self) -> Protocol:
        """Made anew from its name wherever it is needed: it is data, and small."""
        return protocol(self.protocol_name, self.threat_model, self.num_classes)


@dataclass(frozen=True)
class ModelFolder:
    """A model that each process reads from disk, refused unless the weights have this hash."""

    path: Path
    sha256: str


def run_share(
    model: nn.Module, work: Work, ids: Sequence[int], progress: Callable[[dict], None]
) -> list[SampleResult]:
    """Attack samples `ids` in this process, on the model as it is."""
    return run_protocol(
        model,
        work.dataset,
        ids,
        work.protocol,
        work.threat_model,
        work.num_classes,
        seed=work.seed,
        micro_batch_size=work.micro_batch_size,
        device=torch.device(work.device),
        progress=progress,
    )


def run_shares(
    model: nn.Module | ModelFolder,
    work: Work,
    ids: Sequence[int],
    workers: int,
    progress: Callable[[int, dict], None],
) -> list[SampleResult]:
    """Deal `ids` out to `workers` new processes, one by one in turn, and return all results sorted by id.

    Args:
        model: a folder to read, or a module that pickle can send.
        progress: called with (worker number, its progress message).

    Raises:
        WorkerError: model or data cannot be sent to another process; a process failed or was killed. The
            other processes are stopped.
    """
    payload = _dumps((model, work))
    # Spawn, not fork: a forked process inherits torch's thread pools and CUDA state in a broken condition.
    context = multiprocessing.get_context("spawn")
    shares = [list(ids[number::workers]) for number in range(workers)]
    processes: list[multiprocessing.process.BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for number in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work_in_process, args=(theirs,), name=f"{_NAME} {number}", daemon=True
            )
            process.start()
            theirs.close()  # so that the death of the process reads as end of file here
            processes.append(process)
            pipes.append(ours)
        for process, pipe, share in zip(processes, pipes, shares, strict=True):
            _send(pipe, payload, share, process)
        results = _collect(processes, pipes, shares, progress)
        for process in processes:
            process.join()
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
            process.join()
        for pipe in pipes:
            pipe.close()
    return sorted(results, key=lambda result: result.id)


def _dumps(what: tuple[nn.Module | ModelFolder, Work]) -> bytes:
    """Pickle once for all processes; plain pickle copies tensors, so that no memory is shared."""
    try:
        return pickle.dumps(what)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise WorkerError(
            f"model or data cannot be sent to worker processes ({error}); expected a model folder, or a "
            "module and a dataset that pickle accepts (classes defined in an importable file, no lambdas): "
            "use workers=1 otherwise"
        ) from error


def _send(
    pipe: Connection, payload: bytes, share: list[int], process: multiprocessing.process.BaseProcess
) -> None:
    try:
        pipe.send_bytes(payload)
        pipe.send(share)
    except (BrokenPipeError, ConnectionResetError):
        raise _death(process, share) from None


def _collect(
    processes: list[multiprocessing.process.BaseProcess],
    pipes: list[Connection],
    shares: list[list[int]],
    progress: Callable[[int, dict], None],
) -> list[SampleResult]:
    """Wait for every process; the first failure ends the wait."""
    results: list[SampleResult] = []
    waiting = {pipe: number for number, pipe in enumerate(pipes)}
    while waiting:
        for pipe in wait(list(waiting)):
            number = waiting[pipe]
            try:
                kind, content = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                raise _death(processes[number], shares[number]) from None
            if kind == "failed":
                raise WorkerError(
                    f"{processes[number].name} failed; nothing was written. Its traceback:\n{content}"
                )
            if kind == "done":
                results += content
                del waiting[pipe]
            else:
                progress(number, content)
    return results


def _death(process: multiprocessing.process.BaseProcess, share: list[int]) -> WorkerError:
    process.join(timeout=5)
    code = process.exitcode
    if code is not None and code < 0:
        reason = f"was killed by {signal.Signals(-code).name} (often: out of memory)"
    else:
        return WorkerError(
            f"{process.name} ended with exit code {code} before its result; nothing was written. The likely "
            f"cause: {_GUARD}. Its own message stands on standard error"
        )
    return WorkerError(
        f"{process.name} {reason}, with {len(share)} samples to do; nothing was written. Try again with "
        "fewer workers or a smaller micro-batch"
    )


def _work_in_process(pipe: Connection) -> None:
    """Body of a worker process: read model, work and ids; answer progress, then results or a traceback."""

    def answer(kind: str, content: Any) -> None:
        pipe.send_bytes(pickle.dumps((kind, content)))

    try:
        model, work = pickle.loads(pipe.recv_bytes())
        ids = pipe.recv()
        device = torch.device(work.device)
        with strict_arithmetic(device):
            if isinstance(model, ModelFolder):
                # Imported here, since it brings timm along: seconds that a process for any other model saves.
                from robustzoo.models.folder import read_folder

                model = read_folder(model.path, model.sha256, check_logits=False)
            with placed(model, device), frozen(model):
                results = run_share(model, work, ids, lambda message: answer("progress", message))
        answer("done", results)
    except Exception:
        # The parent decides what to do; a broken pipe means that it is gone and nobody is left to tell.
        try:
            answer("failed", traceback.format_exc())
        except (BrokenPipeError, ConnectionResetError):
            return
    finally:
        pipe.close()
