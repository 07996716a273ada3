"""The work of an evaluation, as data that any process can take up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustzoo.attacks.protocols import Protocol, protocol
from robustzoo.registry import ThreatModel


@dataclass(frozen=True)
class Work:
    """Everything a process needs beside the model: what to attack and how. Arguments as of `evaluate`."""

    dataset: Any
    protocol_name: str
    threat_model: ThreatModel
    num_classes: int
    seed: int
    micro_batch_size: int
    device: str
    precision: str = "float32"
    compiled: bool = False

    @property
    def protocol(self) -> Protocol:
        """Made anew from its name wherever it is needed: it is data, and small."""
        return protocol(self.protocol_name, self.threat_model, self.num_classes)


@dataclass(frozen=True)
class ModelFolder:
    """A model that each process reads from disk, refused unless the weights have this hash."""

    path: Path
    sha256: str
