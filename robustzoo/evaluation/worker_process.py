"""A worker process: reads model and work, and does what the process that called it deals out."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from robustzoo.attacks.answers import NonFiniteLogits, seeded_draws
from robustzoo.attacks.frozen import frozen
from robustzoo.evaluation.engine import ModelFolder, Stages, Work
from robustzoo.evaluation.ledger import encode
from robustzoo.evaluation.machine import placed, strict_arithmetic


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

                opened = folder.ModelFolder(model.path, model.trust)
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
