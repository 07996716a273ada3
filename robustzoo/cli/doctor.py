"""`robustzoo doctor`: what this machine can run, and what to install for the rest."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from robustzoo.cli.output import say

LIBRARIES = ("robustzoo", "torch", "torchvision", "timm", "deepspeed", "safetensors", "numpy", "ninja")
SECONDS = 180  # longest wait for DeepSpeed's own report, which imports torch twice
# "fused_adam ............. [NO] ....... [OKAY]", colours taken out: name, installed, compatible.
_OP = re.compile(r"^(\w+)[ .]+\[(?:YES|NO)\][ .]+\[(OKAY|NO)\]$", re.MULTILINE)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="machine-readable")
def doctor(as_json: bool) -> None:
    """Report what this machine can run: compiler, CUDA, DeepSpeed's operations, memory, versions."""
    found = examine()
    say(json.dumps(found, indent=1) if as_json else page(found))


def examine() -> dict[str, Any]:
    """Everything found, JSON-able: machine, libraries, tools, gpus, deepspeed_ops, abilities, install."""
    found: dict[str, Any] = {
        "machine": machine(),
        "libraries": {name: installed(name) for name in LIBRARIES},
        "tools": tools(),
        "gpus": gpus() if installed("torch") else [],
        "deepspeed_ops": deepspeed_operations() if installed("deepspeed") else None,
    }
    able, install = abilities(found)
    return found | {"abilities": able, "install": install}


def machine() -> dict[str, Any]:
    """Platform, cores this process may use, memory and disk in GB (10^9 bytes)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    page_size = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    pages = {"memory_gb": "SC_PHYS_PAGES", "memory_free_gb": "SC_AVPHYS_PAGES"}
    memory = {key: round(page_size * os.sysconf(name) / 1e9, 1) for key, name in pages.items() if page_size}
    return {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cores": cores,
        **memory,
        "disk_free_gb": round(shutil.disk_usage(Path.cwd()).free / 1e9, 1),
    }


def installed(name: str) -> str | None:
    """Version of a distribution, without importing it; None where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def tools() -> dict[str, str | None]:
    """Where the programs are that DeepSpeed and torch.compile call; beside the interpreter counts too."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    names = {"compiler": os.environ.get("CXX", "c++"), "ninja": "ninja", "nvcc": "nvcc", "git": "git"}
    return {what: shutil.which(name, path=path) for what, name in names.items()}


def gpus() -> list[dict[str, Any]]:
    """Name, memory in GB and bfloat16 support of the CUDA devices that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return []
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [
        {"name": p.name, "memory_gb": round(p.total_memory / 1e9, 1), "bf16": p.major >= 8}
        for p in properties
    ]


def deepspeed_operations() -> dict[str, bool] | None:
    """Name -> whether DeepSpeed can compile it here, by its own report; None where that gives none."""
    command = [sys.executable, "-m", "deepspeed.env_report"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_operations(done.stdout) or None


def parse_operations(report: str) -> dict[str, bool]:
    """The operations in the text of `ds_report`."""
    plain = _COLOUR.sub("", report)
    return {
        name: answer == "OKAY" for name, answer in _OP.findall(plain) if not name.startswith("deepspeed_not")
    }


def abilities(found: dict[str, Any]) -> tuple[dict[str, bool], list[str]]:
    """What can be run -> whether, and what to install or do for the rest, in words."""
    libraries, where = found["libraries"], found["tools"]
    install = []
    if libraries["deepspeed"] is None:
        install.append("training: pip install 'robustzoo[train]' (DeepSpeed)")
    if where["compiler"] is None:
        install.append("--compile: a C++ compiler (g++ or clang++; CXX names another)")
    if found["gpus"] and where["nvcc"] is None:
        install.append("DeepSpeed's CUDA operations: a CUDA toolkit with nvcc (none of ours needs one)")
    trains = libraries["deepspeed"] is not None
    able = {
        "load, evaluate, verify": libraries["torch"] is not None and libraries["timm"] is not None,
        "train on a CPU": trains,
        "train on a GPU": trains and bool(found["gpus"]),
        "train in bf16": trains and all(gpu["bf16"] for gpu in found["gpus"]),
        "train with --compile": trains and where["compiler"] is not None,
        "train on several GPUs": trains and len(found["gpus"]) > 1,
    }
    if not found["gpus"]:
        install.append("training beyond small networks: a GPU, and a torch built for it (see pytorch.org)")
    return able, install


def page(found: dict[str, Any]) -> str:
    """The report for people."""
    spec = found["machine"]
    lines = [
        f"{spec['platform']}, Python {spec['python']}, {spec['cores']} cores, "
        f"{spec.get('memory_gb', '?')} GB memory ({spec.get('memory_free_gb', '?')} free), "
        f"{spec['disk_free_gb']} GB disk free here",
        "",
        *(f"{name:<14}{found['libraries'][name] or 'not installed'}" for name in LIBRARIES),
        "",
        *(f"{what:<14}{path or 'not found'}" for what, path in found["tools"].items()),
        "",
    ]
    for number, gpu in enumerate(found["gpus"]):
        precision = "bf16" if gpu["bf16"] else "no bf16"
        lines.append(f"GPU {number}         {gpu['name']}, {gpu['memory_gb']} GB, {precision}")
    if not found["gpus"]:
        lines.append("GPU           none that torch can use")
    operations = found["deepspeed_ops"]
    if operations is not None:
        can = ", ".join(name for name, good in operations.items() if good) or "none"
        cannot = ", ".join(name for name, good in operations.items() if not good) or "none"
        lines.append(f"DeepSpeed ops can be built here: {can}; cannot: {cannot}")
    lines.append("")
    lines += [f"{'yes' if good else 'no ':<5}{what}" for what, good in found["abilities"].items()]
    if found["install"]:
        lines += ["", "to install:", *(f"  {what}" for what in found["install"])]
    return "\n".join(lines)
