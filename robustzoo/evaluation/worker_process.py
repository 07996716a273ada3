"""A worker: a process that reads model and work and does what the caller deals out, or a thread of the
caller, which computes on the caller's own model while the caller deals."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from robustzoo.attacks.answers import NonFiniteLogits, seeded_draws
from robustzoo.attacks.frozen import frozen
from robustzoo.evaluation.engine import ModelFolder, Stages, Work
from robustzoo.evaluation.ledger import encode
from robustzoo.evaluation.machine import device_of, placed, strict_arithmetic


def follow(pipe: Connection, model: Callable[[Tensor], Tensor], work: Work) -> None:
    """Ask through `pipe` which stage to start, then for one sample of it after the other; send the findings.

    Args:
        model: frozen and on the work's device.
    """

    def ask(kind: str, content: Any = None) -> Any:
        answer(pipe, kind, content)
        return pickle.loads(pipe.recv_bytes())

    with seeded_draws(work.seed, torch.device(work.device), work.protocol.draws):
        stages = Stages(model, work)
        while (stage := ask("next")) is not None:
            for findings in stages.run(stage, iter(partial(ask, "take", stage), None)):
                answer(pipe, "found", encode(findings, {}))


def answer(pipe: Connection, kind: str, content: Any = None) -> None:
    """Send a message to the process that deals."""
    pipe.send_bytes(pickle.dumps((kind, content)))


def work_in_process(pipe: Connection) -> None:
    """Body of a worker process. The model, the work and the device are the first messages."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which stops this process
    try:
        model, work = pickle.loads(pipe.recv_bytes())
        work = replace(work, device=pickle.loads(pipe.recv_bytes()))
        device = torch.device(work.device)
        with strict_arithmetic(device):
            if isinstance(model, ModelFolder):
                # Imported here, since it brings timm along: seconds that a process for any other model saves.
                from robustzoo.models import folder

                opened = folder.ModelFolder(model.path, trust=model.trust)
                model = folder.read_folder(opened, model.sha256, check_logits=False)
            with placed(model, device), frozen(model):
                follow(pipe, model, work)
    except Exception as error:
        # The parent decides what to do; a broken pipe means that it is gone and nobody is left to tell.
        try:
            if isinstance(error, NonFiniteLogits):
                answer(pipe, "not finite", error.ids)
            else:
                answer(pipe, "failed", traceback.format_exc())
        except (BrokenPipeError, ConnectionResetError):
            return
    finally:
        pipe.close()


# How long the thread may take to notice by itself that it is to end; within a longer forward it is
# interrupted.
_PATIENCE_SECONDS = 1.0


class _Stop(BaseException):
    """Raised in the thread to end it; not an Exception, so that no forward takes it for its own."""


class CallersShare(threading.Thread):
    """Speaks through `pipe` as a worker process does, on the caller's own model: no copy, no start to wait
    for.

    Attributes:
        error: what ended it, if anything did; the message "raised" tells of it.
    """

    def __init__(self, model: nn.Module, work: Work) -> None:
        super().__init__(name="robustzoo worker 0", daemon=True)
        self.pipe, self._theirs = Pipe()
        self.error: BaseException | None = None
        # Threads have a current GPU each: "cuda" here could be another than the model's.
        device = str(device_of(model)) if work.device == "cuda" else work.device
        self._model, self._work = model, replace(work, device=device)
        self._cpu_threads = torch.get_num_threads()
        self._ending = False

    def run(self) -> None:
        # OpenMP keeps the count by thread, and a new thread begins with all cores: torch sets it in its first
        # own loop there, after a product of matrices, say.
        torch.set_num_threads(self._cpu_threads)
        with contextlib.suppress(_Stop):
            try:
                # The check would break a compiled graph in two.
                follow(self._theirs, self._model if self._work.compiled else self._forward, self._work)
            except _Stop:
                raise
            except BaseException as error:  # a forward's sys.exit too: the caller's own thread raises it
                self.error = error
                with contextlib.suppress(OSError):  # the caller has closed its end, for a reason of its own
                    answer(self._theirs, "raised")
            finally:
                self._theirs.close()

    def _forward(self, x: Tensor) -> Tensor:
        if self._ending:
            raise _Stop
        return self._model(x)

    def stop(self) -> None:
        """End it before its next forward, or soon within a long one as Ctrl-C would; returns once it has
        ended."""
        self._ending = True
        self.pipe.close()
        if self.is_alive():
            self.join(_PATIENCE_SECONDS)
        while self.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(_Stop))
            self.join(_PATIENCE_SECONDS)
