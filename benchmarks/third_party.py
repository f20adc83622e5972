"""Published mixers as their packages give them: the check and a tiny run of each, on a CPU.

    python -m mixerlab.benchmarks.third_party --out results/third_party/table.md [NAME ...]

Each layer of `third_party.yaml` is wrapped as a user would. The table says what `mixerlab check` and a run say of it.
"""

import argparse
import contextlib
import io
import re
import tempfile
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml
from hydra.utils import get_class, instantiate
from torch import nn

import mixerlab
from mixerlab.checks import command
from mixerlab.mixers.wrapped import Wrapped
from mixerlab.train import RunFailed

LAYERS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


class RotaryAttention(nn.Module):
    """Softmax attention of PyTorch with the rotations of rotary-embedding-torch."""

    def __init__(self, d_model: int, heads: int = 2):
        super().__init__()
        self.heads = heads
        self.rotary = get_class("rotary_embedding_torch.RotaryEmbedding")(d_model // heads)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model, bias=False), nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.rotary.rotate_queries_or_keys(q), self.rotary.rotate_queries_or_keys(k)
        y = nn.functional.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Retention(nn.Module):
    def __init__(self, d_model: int):
        super().__init__()
        self.layer = get_class("yet_another_retnet.retention.MultiScaleRetention")(d_model, num_heads=2)

    def forward(self, x):
        return self.layer(x, x, x)


class Published(Wrapped):
    """The mixer of a `layer` in `LAYERS`; its width is theirs."""

    def __init__(self, d_model: int, layer: str):
        own = LAYERS[layer]
        state, each_token = own.get("state", 0), own.get("each_token", 0)
        made = instantiate(own["layer"], _convert_="object")
        super().__init__(made, lambda length: state + each_token * length, own.get("multiple_of", 1))


TINY = [
    "task=icr",
    "task.vocab_size=16",
    "task.seq_len=32",
    "task.num_train_examples=512",
    "task.num_val_examples=64",
    "task.num_test_examples=64",
    "model.d_model=32",
    "optimizer.lr=[0.003,0.001]",
    "trainer.epochs=2",
    "trainer.batch_size=32",
    "trainer.progress=false",
    "trainer.accelerator=cpu",
]


def shortened(line: str) -> str:
    """Without places in files, advice, and what the whole table has in common."""
    line = re.sub(r" \((/|checked at ).*?\)|mixer=\w+ (?=sets )|layer\.|blocks\.\*\.mixer\.", "", line)
    return re.split(r": forward does not|, and the model overwrites", line)[0]


def checked(name: str, folder: Path) -> tuple[str, str]:
    """What `mixerlab check` says: `passes` or the refusal, and how replicas compute."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            command.main([name, "--config-dir", str(folder)])
    except ValueError as error:
        return shortened(str(error).removeprefix(f"mixer={name}: ")), ""
    lines = out.getvalue().splitlines()
    notes = [shortened(line.removeprefix("note: ")) for line in lines if line.startswith("note: ")]
    return "; ".join(["passes", *notes]), "loop" if "one after another" in out.getvalue() else "vmap"


def trained(name: str, folder: Path) -> str:
    """The loss of the better rate after a tiny run, or why there is none."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            record = mixerlab.run(f"mixer={name}", *TINY, f"results_dir={folder / 'results'}", config_dir=folder)
    except (ValueError, RunFailed) as error:
        return shortened(str(error).removeprefix(f"mixer={name}: "))
    assert record is not None
    return f"{min(row['train_loss'] for row in record.rows):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="of third_party.yaml; all by default")
    parser.add_argument("--out", type=Path, help="a file for the table")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = ["| mixer | package | check | replicas | loss of a tiny run |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "mixer").mkdir()
        for name in args.names or LAYERS:
            package = LAYERS[name]["package"]
            target = f"{__spec__.name}.{Published.__name__}"
            (folder / "mixer" / f"{name}.yaml").write_text(f"name: {name}\n_target_: {target}\nlayer: {name}\n")
            try:
                package += f" {version(package)}"
            except PackageNotFoundError:
                lines.append(f"| {name} | {package} | not installed | | |")
                continue
            says, how = checked(name, folder)
            cells = name, package, says, how, trained(name, folder) if how else ""
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
            print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
