"""What the benchmarks share: times of CUDA graphs, and tables that say how they were made."""

import argparse
import csv
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from mixerlab.records.provenance import git_state, versions


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A parser with the option that all commands have which write a `Table`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder of table.csv and environment.json")
    return parser


def options_on_gpu(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options of the command, which ends where there is no GPU to measure."""
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs an NVIDIA GPU")
    return options


def forward_and_gradients(function: Callable, inputs: Sequence[Tensor], d_o: Tensor) -> list[Tensor]:
    """The output and the gradients of the inputs; those of a layer's parameters are computed, too."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    parameters = list(function.parameters()) if isinstance(function, nn.Module) else []
    # A layer's parameters are float32; what has none gets all its inputs as they are to be.
    is_mixed = bool(parameters) and d_o.dtype == torch.bfloat16
    with torch.autocast(d_o.device.type, torch.bfloat16, enabled=is_mixed):
        o = function(*leaves)
    o = o[0] if isinstance(o, tuple) else o  # a peer returns its state, too
    return [o.detach(), *torch.autograd.grad(o, [*leaves, *parameters], d_o, allow_unused=True)[: len(leaves)]]


def graph_ms(run: Callable[[], object]) -> float:
    """The median time of one replay of `run` in a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    graph.replay()
    # Several replays between two events: a replay may take only microseconds, less than recording the events.
    inner = max(1, int(2.0 / max(milliseconds(graph.replay, 1), 1e-3)))

    def replays() -> None:
        for _ in range(inner):
            graph.replay()

    return milliseconds(replays, 20) / inner


def milliseconds(function: Callable[[], object], repeats: int) -> float:
    """Median time that the device spends on `function`."""
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        times.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in times)


def copy_rate() -> float:
    """Bytes per second that this GPU reads and writes in a copy of 1 GiB."""
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * 2**30 / (graph_ms(lambda: target.copy_(source)) / 1000)


class Table:
    """`table.csv` of a folder. The runs of a command append their rows to it, and to the list in `environment.json` the
    command, code, date, GPU and versions that these depend on; a row's `run` is a place in this list.
    """

    def __init__(self, folder: Path, benchmark: str, **about: object):
        folder.mkdir(parents=True, exist_ok=True)
        self.path, runs = folder / "table.csv", folder / "environment.json"
        earlier = json.loads(runs.read_text()) if runs.exists() else []
        self.run = len(earlier)
        arguments = (Path(one).name if Path(one).is_absolute() else one for one in sys.argv[1:])
        environment = {
            "command": shlex.join(["python", "-m", f"mixerlab.benchmarks.{benchmark}", *arguments]),
            "date": time.strftime("%Y-%m-%d"),
            "gpu": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
        }
        environment |= versions() | git_state() | about
        runs.write_text(json.dumps([*earlier, environment], indent=2) + "\n")

    def add(self, row: Mapping[str, object]) -> None:
        """Writes a row at once, so that an interrupted run keeps its rows, and prints it."""
        row = {"run": self.run} | {key: f"{x:.5g}" if isinstance(x, float) else x for key, x in row.items()}
        print(*(f"{key} {value}" for key, value in row.items()), flush=True)
        with open(self.path, "a+", newline="") as file:
            file.seek(0)
            columns = next(csv.reader(file), None)  # of earlier runs, in the order of then
            writer = csv.DictWriter(file, columns or row, lineterminator="\n")
            if not columns:
                writer.writeheader()
            writer.writerow(row)
