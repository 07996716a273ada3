"""The calling process is one of its workers: a thread computes while the caller's own deals the work out."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from dataclasses import replace
from multiprocessing import Pipe

import torch
from torch import Tensor, nn

from robustzoo.evaluation.engine import Work
from robustzoo.evaluation.machine import device_of
from robustzoo.evaluation.worker_process import answer, follow

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
