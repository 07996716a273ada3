"""Several processes share one evaluation; the verdicts are those that a single process gives."""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
from torch import nn

from robustzoo.attacks.answers import NonFiniteLogits, seeded_draws
from robustzoo.attacks.frozen import frozen
from robustzoo.evaluation.findings import Finding, decode, encode
from robustzoo.evaluation.ledger import Ledger
from robustzoo.evaluation.machine import placed, strict_arithmetic
from robustzoo.evaluation.stages import Stages
from robustzoo.evaluation.work import ModelFolder, Work

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


def run_here(model: nn.Module, work: Work, ledger: Ledger, record: Callable[[list[Finding]], None]) -> None:
    """Do in this process all that the ledger has left.

    Args:
        model: frozen, on the work's device.
        record: called with each batch of findings; enters them into the ledger.
    """
    with seeded_draws(work.seed, torch.device(work.device), work.protocol.draws):
        stages = Stages(model, work)
        while (stage := ledger.startable()) is not None:
            for findings in stages.run(stage, iter(partial(ledger.take, stage), None)):
                record(findings)


def run_in_workers(
    model: nn.Module | ModelFolder,
    work: Work,
    ledger: Ledger,
    workers: int,
    record: Callable[[list[Finding]], None],
) -> None:
    """Do in `workers` new processes all that the ledger has left. They share its queues: each takes a sample
    when a lane of its own is free, so that none is idle while samples wait.

    Args:
        model: a folder to read, or a module that pickle can send.
        record: as in `run_here`.

    Raises:
        WorkerError: model or data cannot be sent to another process; a process failed or was killed. The
            other processes are stopped.
        NonFiniteLogits: as in one process.
    """
    payload = _dumps((model, work))
    # Spawn, not fork: a forked process inherits torch's thread pools and CUDA state in a broken condition.
    context = multiprocessing.get_context("spawn")
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
        for number, (process, pipe) in enumerate(zip(processes, pipes, strict=True)):
            _send(pipe, payload, process)
            _send(pipe, pickle.dumps(device_of_worker(work.device, number)), process)
        _deal(processes, pipes, ledger, record)
        for process in processes:
            process.join()
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
            process.join()
        for pipe in pipes:
            pipe.close()


def device_of_worker(device: str, number: int) -> str:
    """Where worker `number` computes: on "cuda" each takes the next GPU, a GPU that is named is shared."""
    return f"cuda:{number % torch.cuda.device_count()}" if device == "cuda" else device


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


def _send(pipe: Connection, payload: bytes, process: multiprocessing.process.BaseProcess) -> None:
    try:
        pipe.send_bytes(payload)
    except (BrokenPipeError, ConnectionResetError):
        raise _death(process) from None


def _deal(
    processes: list[multiprocessing.process.BaseProcess],
    pipes: list[Connection],
    ledger: Ledger,
    record: Callable[[list[Finding]], None],
) -> None:
    """Answer what the processes ask until nothing is left; the first failure ends it.

    A process asks which stage to start, then for one sample of it after the other, and sends its findings in
    between. One that asks for a stage while none can start waits for the findings of the others.
    """
    numbers = {pipe: number for number, pipe in enumerate(pipes)}
    idle: list[Connection] = []
    while not (ledger.finished and len(idle) == len(pipes)):
        for pipe in wait(pipes):
            process = processes[numbers[pipe]]
            try:
                kind, content = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                raise _death(process) from None
            if kind == "not finite":
                raise NonFiniteLogits(content)
            if kind == "failed":
                raise WorkerError(f"{process.name} failed. Its traceback:\n{content}")
            if kind == "found":
                record(decode(content)[0])
            elif kind == "take":
                _send(pipe, pickle.dumps(ledger.take(content)), process)
            else:
                idle.append(pipe)
        while idle and (stage := ledger.startable()) is not None:
            pipe = idle.pop(0)
            _send(pipe, pickle.dumps(stage), processes[numbers[pipe]])
    for pipe in idle:
        _send(pipe, pickle.dumps(None), processes[numbers[pipe]])


def _death(process: multiprocessing.process.BaseProcess) -> WorkerError:
    process.join(timeout=5)
    code = process.exitcode
    if code is not None and code < 0:
        return WorkerError(
            f"{process.name} was killed by {signal.Signals(-code).name} (often: out of memory). Try again "
            "with fewer workers or a smaller micro-batch"
        )
    return WorkerError(
        f"{process.name} ended with exit code {code} before its result. The likely cause: {_GUARD}. Its own "
        "message stands on standard error"
    )


def _work_in_process(pipe: Connection) -> None:
    """Body of a worker process: read model and work, then run the stages that it is told to."""

    def answer(kind: str, content: Any = None) -> None:
        pipe.send_bytes(pickle.dumps((kind, content)))

    def ask(kind: str, content: Any = None) -> Any:
        answer(kind, content)
        return pickle.loads(pipe.recv_bytes())

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which stops this process
    try:
        model, work = pickle.loads(pipe.recv_bytes())
        work = replace(work, device=pickle.loads(pipe.recv_bytes()))
        device = torch.device(work.device)
        with strict_arithmetic(device):
            if isinstance(model, ModelFolder):
                # Imported here, since it brings timm along: seconds that a process for any other model saves.
                from robustzoo.models.folder import read_folder

                model = read_folder(model.path, model.sha256, check_logits=False)
            with placed(model, device), frozen(model), seeded_draws(work.seed, device, work.protocol.draws):
                stages = Stages(model, work)
                while (stage := ask("next")) is not None:
                    for findings in stages.run(stage, iter(partial(ask, "take", stage), None)):
                        answer("found", encode(findings, {}))
    except Exception as error:
        # The parent decides what to do; a broken pipe means that it is gone and nobody is left to tell.
        try:
            if isinstance(error, NonFiniteLogits):
                answer("not finite", error.ids)
            else:
                answer("failed", traceback.format_exc())
        except (BrokenPipeError, ConnectionResetError):
            return
    finally:
        pipe.close()
