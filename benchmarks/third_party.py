"""Published mixers as their packages give them: the check and a tiny run of each, on a CPU.

    python -m mixerlab.benchmarks.third_party --out results/third_party/table.md [NAME ...]

Each layer is wrapped as a user would; pip installs its `package`. The table says what `mixerlab check` and a run say of
it.
"""

import argparse
import contextlib
import io
import re
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_class
from torch import nn

import mixerlab
from mixerlab.checks import command
from mixerlab.mixers.wrapped import Wrapped
from mixerlab.train import RunFailed


@dataclass(frozen=True)
class Layer:
    """A layer of a package.

    Attributes:
        package: as pip calls it.
        make: the layer of a width, at a place in the model.
        state: elements of its state, by width and number of tokens.
        multiple_of: as for `Wrapped`.
    """

    package: str
    make: Callable[[int, int], nn.Module]
    state: Callable[[int, int], int]
    multiple_of: int = 1


def gated_delta_net(d: int, n: int) -> nn.Module:
    code = import_module("transformers.models.qwen3_next.modeling_qwen3_next")
    heads = {f"linear_num_{what}_heads": 2 for what in ("key", "value")}
    dims = {f"linear_{what}_head_dim": 16 for what in ("key", "value")}
    return code.Qwen3NextGatedDeltaNet(code.Qwen3NextConfig(hidden_size=d, **heads, **dims), n)


def mamba2(d: int, n: int) -> nn.Module:
    code = import_module("transformers.models.mamba2.modeling_mamba2")
    sizes = {"num_heads": 4, "head_dim": d // 2, "state_size": 16, "chunk_size": 16, "n_groups": 1}
    return code.Mamba2Mixer(code.Mamba2Config(hidden_size=d, **sizes), n)


def mlstm(d: int, n: int) -> nn.Module:
    code = import_module("xlstm")
    return code.mLSTMLayer(code.mLSTMLayerConfig(embedding_dim=d, num_heads=2, context_length=256))


def slstm(d: int, n: int) -> nn.Module:
    code = import_module("xlstm")
    return code.sLSTMLayer(code.sLSTMLayerConfig(embedding_dim=d, num_heads=2, backend="vanilla", dtype="float32"))


def mamba_py(d: int, n: int) -> nn.Module:
    code = import_module("mambapy.mamba")
    return code.MambaBlock(code.MambaConfig(d_model=d, n_layers=1))


LONGEST = 160  # tokens of gMLP
HEADS: dict[str, Any] = {"dim_head": 16, "heads": 2, "causal": True}
SPARSE = {"compress_block_size": 8, "compress_block_sliding_stride": 4, "selection_block_size": 8}
SPARSE |= {"sliding_window_size": 8, "num_selected_blocks": 2}


def state_of_gmlp(d: int, length: int) -> int:
    """It has a weight of its own for each pair of positions, and so a longest sequence."""
    if length > LONGEST:
        raise ValueError(f"gMLP takes at most {LONGEST} tokens")
    return 32 * length


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


class DiffLlama(nn.Module):
    """Differential attention, in the code of transformers."""

    def __init__(self, d_model: int, layer_idx: int):
        super().__init__()
        code = import_module("transformers.models.diffllama.modeling_diffllama")
        heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
        config = code.DiffLlamaConfig(hidden_size=d_model, attn_implementation="eager", **heads)
        self.layer, self.rotary = code.DiffLlamaAttention(config, layer_idx), code.DiffLlamaRotaryEmbedding(config)

    def forward(self, x):
        steps = torch.arange(x.shape[1], device=x.device)
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device).triu(1)[None, None]
        return self.layer(x, position_embeddings=self.rotary(x, steps[None]), attention_mask=mask)


LAYERS = {
    "RotaryAttention": Layer("rotary-embedding-torch", lambda d, n: RotaryAttention(d), lambda d, t: 2 * t * d),
    "MinGRU": Layer("minGRU-pytorch", lambda d, n: get_class("minGRU_pytorch.minGRU")(d), lambda d, t: d),
    "Titans": Layer(  # the memory
        "titans-pytorch",
        lambda d, n: get_class("titans_pytorch.NeuralMemory")(d, chunk_size=16, default_step_transform_max_lr=0.1),
        lambda d, t: 8 * d**2,
        multiple_of=16,
    ),
    "NativeSparse": Layer(
        "native-sparse-attention-pytorch",
        lambda d, n: get_class("native_sparse_attention_pytorch.SparseAttention")(
            d, 16, 2, causal=True, norm=False, **SPARSE
        ),
        lambda d, t: 2 * d * t,
    ),
    "Local": Layer(
        "local-attention",
        lambda d, n: get_class("local_attention.transformer.LocalMHA")(dim=d, window_size=16, **HEADS),
        lambda d, t: 4 * 32 * 16,
        multiple_of=16,
    ),
    "XAttention": Layer(
        "x-transformers",
        lambda d, n: get_class("x_transformers.x_transformers.Attention")(d, qk_norm=True, gate_values=True, **HEADS),
        lambda d, t: 64 * t,
    ),
    "MLSTM": Layer("xlstm", mlstm, lambda d, t: 2 * d**2),
    "SLSTM": Layer("xlstm", slstm, lambda d, t: 4 * d),
    "MambaPy": Layer("mambapy", mamba_py, lambda d, t: 2 * d * 19),
    "Based": Layer(  # its second-order features
        "taylor-series-linear-attention",
        lambda d, n: get_class("taylor_series_linear_attention.TaylorSeriesLinearAttn")(
            d, dim_head=8, heads=2, causal=True
        ),
        lambda d, t: 2 * 73 * 9,
    ),
    "Performer": Layer(
        "performer-pytorch",
        lambda d, n: get_class("performer_pytorch.SelfAttention")(d, nb_features=32, **HEADS),
        lambda d, t: 2 * 32 * 17,
    ),
    "GateLoop": Layer(
        "gateloop-transformer",
        lambda d, n: get_class("gateloop_transformer.SimpleGateLoopLayer")(d, prenorm=False),
        lambda d, t: d,
    ),
    "GateLooped": Layer(
        "gateloop-transformer",
        lambda d, n: get_class("gateloop_transformer.gateloop_transformer.GateLoopedAttention")(d, heads=2),
        lambda d, t: d**2,
    ),
    "Mega": Layer(
        "mega-pytorch",
        lambda d, n: get_class("mega_pytorch.mega_pytorch.MegaLayer")(
            dim=d, ema_heads=4, attn_dim_qk=16, attn_dim_value=32
        ),
        lambda d, t: 48 * t,
    ),
    "GatedStateSpace": Layer(
        "gated-state-spaces-pytorch",
        lambda d, n: get_class("gated_state_spaces_pytorch.GSS")(dim=d, dss_kernel_N=16, dss_kernel_H=32),
        lambda d, t: 2 * 16 * 32,
    ),
    "Retention": Layer("yet-another-retnet", lambda d, n: Retention(d), lambda d, t: d**2 // 2),
    "SimplifiedStateSpace": Layer("s5-pytorch", lambda d, n: get_class("s5.S5")(d, d), lambda d, t: 2 * d),  # S5
    "SpatialGate": Layer(  # gMLP
        "g-mlp-pytorch",
        lambda d, n: get_class("g_mlp_pytorch.g_mlp_pytorch.gMLPBlock")(dim=d, dim_ff=64, seq_len=LONGEST, causal=True),
        state_of_gmlp,
    ),
    "DiffLlama": Layer("transformers", DiffLlama, lambda d, t: 2 * d * t),
    "Mamba2": Layer("transformers", mamba2, lambda d, t: 2 * d * 16),
    "GatedDeltaNet": Layer("transformers", gated_delta_net, lambda d, t: 512),
    "Recurrent": Layer("torch", lambda d, n: nn.GRU(d, d, batch_first=True), lambda d, t: d),
}


class Published(Wrapped):
    """The mixer of a `layer` in `LAYERS`."""

    def __init__(self, d_model: int, layer_idx: int, layer: str):
        one = LAYERS[layer]
        super().__init__(one.make(d_model, layer_idx), lambda length: one.state(d_model, length), one.multiple_of)


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
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        refused = command.main([name, "--config-dir", str(folder)])
    lines = out.getvalue().splitlines()
    if refused:
        return shortened(err.getvalue().strip().removeprefix(f"error: mixer={name}: ")), ""
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
    parser.add_argument("names", nargs="*", help="of LAYERS; all by default")
    parser.add_argument("--out", type=Path, help="a file for the table")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = ["| mixer | package | check | replicas | loss of a tiny run |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "mixer").mkdir()
        for name in args.names or LAYERS:
            package = LAYERS[name].package
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
