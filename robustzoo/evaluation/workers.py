"""Several processes share one evaluation; the verdicts are those that a single process gives."""

from __future__ import annotations

import io
import multiprocessing
import pickle
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from robustzoo.attacks.answers import NonFiniteLogits, seeded_draws
from robustzoo.cards.signs import masking_warning
from robustzoo.errors import RobustzooError
from robustzoo.evaluation.engine import ModelFolder, Stages, Work
from robustzoo.evaluation.ledger import Finding, Ledger, decode
from robustzoo.evaluation.prepare import Prepared
from robustzoo.evaluation.progress import Pace, Reporter, cost_line, seconds_at_most
from robustzoo.evaluation.worker_process import CallersShare, work_in_process

_Worker = multiprocessing.process.BaseProcess | CallersShare
_NAME = "robustzoo worker"
_GUARD = (
    "a script that calls evaluate with workers > 1 must do so under `if __name__ == '__main__':`, since each "
    "worker process imports the script anew"
)


def refuse_in_worker() -> None:
    """Stop a worker process in which the user's script runs a second time, before it computes anything.

    Raises:
        RobustzooError: this process is a worker.
    """
    if multiprocessing.current_process().name.startswith(_NAME):
        raise RobustzooError(
            f"this process is a worker of an evaluation, not the one that called it: {_GUARD}"
        )


def attack_all(
    ready: Prepared,
    ledger: Ledger,
    workers: int,
    reporter: Reporter,
    keep: Callable[[list[Finding]], None] | None = None,
) -> None:
    """Do all that the ledger has left.

    Args:
        ready: sized. What that measured is told as the cost, before and after the clean pass.
        workers: processes, this one among them; with more than one the others read the model's folder where
            it has one, or pickle can send it.
        keep: called with every batch of findings before the ledger has it.
    """
    work, after_clean = ready.work, None
    if ready.measured is not None:
        reporter.say(cost_line(work, sum(ledger.left), workers, ready.measured), "cost")
        after_clean = partial(seconds_at_most, work=work, workers=workers, measured=ready.measured)
    pace = Pace(ledger, work.protocol, reporter, work.micro_batch_size * workers, after_clean)

    def record(findings: list[Finding]) -> None:
        if keep is not None:
            keep(findings)
        for found in findings:
            ledger.add(found)
        pace.show(findings)

    if workers == 1:
        run_here(ready.model, work, ledger, record)
        return
    copies: nn.Module | ModelFolder = ready.model
    if ready.sha256 is not None:
        copies = ModelFolder(Path(ready.model.folder), ready.sha256, getattr(ready.model, "trust", None))
    run_in_workers(ready.model, copies, work, ledger, workers, record)


def attacked(
    ready: Prepared, ids: Sequence[int], workers: int, reporter: Reporter
) -> tuple[list[int], str | None]:
    """Those of `ids` that the model classifies correctly, unattacked and under the work's protocol,
    ascending; and the warning about zero gradients, where there were many.

    Args:
        ready, workers: as of `attack_all`.
    """
    ledger = Ledger(ids, ready.work.attacks, ready.work.micro_batch_size)
    attack_all(replace(ready, measured=None), ledger, min(workers, max(len(ids), 1)), reporter)
    robust = sorted(sample["id"] for sample in ledger.samples() if sample["robust"])
    return robust, masking_warning(ledger.zero_gradients, ledger.correct)


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
    model: nn.Module,
    copies: nn.Module | ModelFolder,
    work: Work,
    ledger: Ledger,
    workers: int,
    record: Callable[[list[Finding]], None],
) -> None:
    """Do in this process and `workers` - 1 new ones all that the ledger has left. They share its queues: each
    takes a sample when a lane of its own is free, so that none is idle while samples wait.

    Args:
        model: as in `run_here`.
        copies: the same for the new processes: a folder to read, or a module that pickle can send.
        workers: at least 2.
        record: as in `run_here`.

    Raises:
        RobustzooError: model, data or the running script cannot be sent to another process; a new process
            failed or was killed. The others are stopped.
        Exception: what model or data raised in this process; NonFiniteLogits in any.
    """
    _check_script()
    if multiprocessing.current_process().daemon:
        raise RobustzooError(
            "this process is a daemon (of a multiprocessing.Pool?), and Python lets those have no processes "
            "of their own: use workers=1"
        )
    payload = _dumps((copies, work))
    # Spawn, not fork: a forked process inherits torch's thread pools and CUDA state in a broken condition.
    context = multiprocessing.get_context("spawn")
    here = CallersShare(model, work)
    processes: list[multiprocessing.process.BaseProcess] = []
    pipes: list[Connection] = []
    try:
        for number in range(1, workers):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=work_in_process, args=(theirs,), name=f"{_NAME} {number}", daemon=True
            )
            process.start()
            theirs.close()  # so that the death of the process reads as end of file here
            processes.append(process)
            pipes.append(ours)
        here.start()
        for number, (process, pipe) in enumerate(zip(processes, pipes, strict=True), start=1):
            _send(pipe, payload, process)
            _send(pipe, pickle.dumps(device_of_worker(work.device, number)), process)
        _deal({here.pipe: here, **dict(zip(pipes, processes, strict=True))}, ledger, record)
        here.join()
        for process in processes:
            process.join()
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        here.stop()
        for process in processes:
            process.join()
        for pipe in pipes:
            pipe.close()


def device_of_worker(device: str, number: int) -> str:
    """Where worker `number` computes: on "cuda" each takes the next GPU, a GPU that is named is shared."""
    return f"cuda:{number % torch.cuda.device_count()}" if device == "cuda" else device


def _check_script() -> None:
    """Raise RobustzooError where the script that runs is no file, which new processes could import."""
    main = sys.modules["__main__"]
    path = getattr(main, "__file__", None)
    if path is not None and getattr(main, "__spec__", None) is None and not Path(path).exists():
        raise RobustzooError(
            f"the script that calls evaluate is {path!r}, which worker processes cannot import; expected a "
            "file: save the script (and call evaluate under `if __name__ == '__main__':`), or use workers=1"
        )


class _Pickler(pickle.Pickler):
    """Plain pickle, which names classes and functions by their module: refuses those that a notebook, `python
    -c` or a prompt has defined, since no other process can import that."""

    def reducer_override(self, obj: Any) -> Any:
        main = sys.modules["__main__"]
        importable = getattr(main, "__file__", None) or getattr(main, "__spec__", None)
        if isinstance(obj, type | FunctionType) and obj.__module__ == "__main__" and not importable:
            raise RobustzooError(
                f"{obj.__qualname__} is defined in a notebook, at a prompt or in `python -c`, where worker "
                "processes cannot import it from: save it in a file, say mine.py, and write `from mine "
                f"import {obj.__qualname__.partition('.')[0]}`, or use workers=1"
            )
        return NotImplemented


def _dumps(what: tuple[nn.Module | ModelFolder, Work]) -> bytes:
    """Pickle once for all processes; plain pickle copies tensors, so that no memory is shared."""
    payload = io.BytesIO()
    try:
        _Pickler(payload).dump(what)
        return payload.getvalue()
    except RobustzooError:
        raise
    except Exception as error:  # each class refuses in its own way: spectral norms, scripted modules
        raise RobustzooError(
            f"model or data cannot be sent to worker processes ({error}); expected a model folder, or a "
            "module and a dataset that pickle accepts (classes defined in an importable file, no lambdas): "
            "use workers=1 otherwise"
        ) from error


def _send(pipe: Connection, payload: bytes, worker: _Worker) -> None:
    try:
        pipe.send_bytes(payload)
    except (BrokenPipeError, ConnectionResetError):
        raise _end(worker) from None


def _deal(
    workers: dict[Connection, _Worker], ledger: Ledger, record: Callable[[list[Finding]], None]
) -> None:
    """Answer what the workers ask until nothing is left; the first failure ends it.

    A worker asks which stage to start, then for one sample of it after the other, and sends its findings in
    between. One that asks for a stage while none can start waits for the findings of the others.
    """
    idle: list[Connection] = []
    while not (ledger.finished and len(idle) == len(workers)):
        for pipe in wait(list(workers)):
            worker = workers[pipe]
            try:
                kind, content = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionResetError):
                raise _end(worker) from None
            if kind == "raised":
                raise _end(worker)
            if kind == "not finite":
                raise NonFiniteLogits(content)
            if kind == "failed":
                raise RobustzooError(f"{worker.name} failed. Its traceback:\n{content}")
            if kind == "found":
                record(decode(content)[0])
            elif kind == "take":
                _send(pipe, pickle.dumps(ledger.take(content)), worker)
            else:
                idle.append(pipe)
        while idle and (stage := ledger.startable()) is not None:
            pipe = idle.pop(0)
            _send(pipe, pickle.dumps(stage), workers[pipe])
    for pipe in idle:
        _send(pipe, pickle.dumps(None), workers[pipe])


def _end(worker: _Worker) -> BaseException:
    """What to raise of a worker that has ended before its work was done."""
    if isinstance(worker, CallersShare):
        worker.join()
        assert worker.error is not None  # nothing else ends it early
        return worker.error
    return _death(worker)


def _death(process: multiprocessing.process.BaseProcess) -> RobustzooError:
    process.join(timeout=5)
    code = process.exitcode
    if code is not None and code < 0:
        return RobustzooError(
            f"{process.name} was killed by {signal.Signals(-code).name} (often: out of memory). Try again "
            "with fewer workers or a smaller micro-batch"
        )
    return RobustzooError(
        f"{process.name} ended with exit code {code} before its result. The likely cause: {_GUARD}. Its own "
        "message stands on standard error"
    )
