"""Peak memory of an evaluation against the number of its images: it must not grow beyond the images as bytes.

    python benchmarks/evaluation_memory.py --data-root ../shared/data/cifar10jpg [--n 200 10000] [--out DIR]

Runs `robustzoo.evaluate` on a tiny network and JPEG CIFAR-10 in a process of its own for each number of
images and prints its peak resident memory (VmHWM). The labels are the network's own answers, so that every
image is attacked, and most are broken and leave a witness.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

IMAGE_BYTES = 3 * 32 * 32
CHILD = """
import json, sys
from pathlib import Path
import torch
from torch import nn
import robustzoo
from robustzoo.data import load_dataset

class Relabelled(torch.utils.data.Dataset):
    classes = list(range(10))

    def __init__(self, root, model):
        self.images = load_dataset("cifar10jpg", root, "test")
        with torch.no_grad():
            self.labels = [int(model(self.images[i][0][None]).argmax()) for i in range(len(self.images))]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i][0], self.labels[i]

if __name__ == "__main__":
    root, n, out, workers = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 7 * 7, 10)
    ).eval()
    found = robustzoo.evaluate(
        model, Relabelled(root, model), "linf:8/255", "pgd-2", n=n, out=out, workers=workers, progress=False
    )
    status = Path("/proc/self/status").read_text()
    peak = int(status.split("VmHWM:")[1].split()[0])
    print(json.dumps({"n": n, "peak_kib": peak, "counts": found.doc["counts"]}))
"""


def measure(data_root: Path, n: int, workers: int = 1) -> dict:
    """{"n", "peak_kib", "counts"} of an evaluation of n images in a new process. Needs Linux."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "child.py"
        script.write_text(CHILD)
        command = [sys.executable, str(script), str(data_root), str(n), f"{folder}/out", str(workers)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="the folder with the parquet files")
    parser.add_argument("--n", type=int, nargs="*", default=[200, 10_000])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for evaluation_memory.json")
    arguments = parser.parse_args()
    rows = [measure(arguments.data_root, n, arguments.workers) for n in arguments.n]
    print("images   correct  broken   peak MB   beyond the first, less the images as bytes (MB)")
    first = rows[0]
    for row in rows:
        images = (row["n"] - first["n"]) * IMAGE_BYTES / 1e6
        more = (row["peak_kib"] - first["peak_kib"]) * 1024 / 1e6 - images
        counts = row["counts"]
        broken = sum(counts["broken_by"].values())
        row["beyond_images_mb"] = round(more, 1)
        print(
            f"{row['n']:<9}{counts['clean_correct']:<9}{broken:<9}{row['peak_kib'] / 976.6:<10.0f}{more:.1f}"
        )
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        document = {"python": platform.python_version(), "machine": platform.machine(), "rows": rows}
        (arguments.out / "evaluation_memory.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
