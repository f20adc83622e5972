"""Published mixers as their packages give them: the check and a tiny run of each, on a CPU.

    python -m mixerlab.benchmarks.third_party --out results/third_party/table.md [NAME ...]

Each class here wraps a layer as a user would; pip installs its `package`. The table says what `mixerlab check` and a
run say of it.
"""

import argparse
import contextlib
import io
import re
import tempfile
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from torch import nn

import mixerlab
from mixerlab.checks import command
from mixerlab.mixers.wrapped import Wrapped
from mixerlab.train import RunFailed


class RotaryAttention(Wrapped):
    """Softmax attention of PyTorch with the rotations of rotary-embedding-torch."""

    package = "rotary-embedding-torch"

    def __init__(self, d_model: int, heads: int = 2):
        from rotary_embedding_torch import RotaryEmbedding

        nn.Module.__init__(self)
        self.heads, self.rotary = heads, RotaryEmbedding(d_model // heads)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model, bias=False), nn.Linear(d_model, d_model, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.rotary.rotate_queries_or_keys(q), self.rotary.rotate_queries_or_keys(k)
        y = nn.functional.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def state_size(self, seq_len):
        return 2 * seq_len * self.out.in_features


class MinGRU(Wrapped):
    package = "minGRU-pytorch"

    def __init__(self, d_model: int):
        from minGRU_pytorch import minGRU

        super().__init__(minGRU(d_model), state=d_model)


class Titans(Wrapped):
    """The memory of Titans; its chunks want whole ones."""

    package = "titans-pytorch"

    def __init__(self, d_model: int, chunk: int = 16):
        from titans_pytorch import NeuralMemory

        layer = NeuralMemory(d_model, chunk_size=chunk, default_step_transform_max_lr=0.1)
        super().__init__(layer, state=8 * d_model**2, multiple_of=chunk)


class NativeSparse(Wrapped):
    package = "native-sparse-attention-pytorch"

    def __init__(self, d_model: int):
        from native_sparse_attention_pytorch import SparseAttention

        blocks = {"compress_block_size": 8, "compress_block_sliding_stride": 4, "selection_block_size": 8}
        layer = SparseAttention(
            d_model, 16, 2, sliding_window_size=8, num_selected_blocks=2, causal=True, norm=False, **blocks
        )
        super().__init__(layer, state=lambda length: 2 * d_model * length)


class Local(Wrapped):
    package = "local-attention"

    def __init__(self, d_model: int, window: int = 16):
        from local_attention.transformer import LocalMHA

        layer = LocalMHA(dim=d_model, window_size=window, dim_head=16, heads=2, causal=True)
        super().__init__(layer, state=4 * 32 * window, multiple_of=window)


class XAttention(Wrapped):
    """Attention of x-transformers with normed queries and keys, and gates on the values."""

    package = "x-transformers"

    def __init__(self, d_model: int):
        from x_transformers.x_transformers import Attention

        layer = Attention(d_model, dim_head=16, heads=2, causal=True, qk_norm=True, gate_values=True)
        super().__init__(layer, state=lambda length: 64 * length)


class SelectiveAttention(Wrapped):
    package = "x-transformers"

    def __init__(self, d_model: int):
        from x_transformers.x_transformers import Attention

        super().__init__(Attention(d_model, dim_head=16, heads=2, causal=True, selective=True), lambda t: 64 * t)


class MLSTM(Wrapped):
    package = "xlstm"

    def __init__(self, d_model: int):
        from xlstm import mLSTMLayer, mLSTMLayerConfig

        config = mLSTMLayerConfig(embedding_dim=d_model, num_heads=2, context_length=256)
        super().__init__(mLSTMLayer(config), state=2 * d_model**2)


class SLSTM(Wrapped):
    package = "xlstm"

    def __init__(self, d_model: int):
        from xlstm import sLSTMLayer, sLSTMLayerConfig

        config = sLSTMLayerConfig(embedding_dim=d_model, num_heads=2, backend="vanilla", dtype="float32")
        super().__init__(sLSTMLayer(config), state=4 * d_model)


class MambaPy(Wrapped):
    package = "mambapy"

    def __init__(self, d_model: int):
        from mambapy.mamba import MambaBlock, MambaConfig

        super().__init__(MambaBlock(MambaConfig(d_model=d_model, n_layers=1)), state=2 * d_model * 19)


class Based(Wrapped):
    """The second-order features of Based."""

    package = "taylor-series-linear-attention"

    def __init__(self, d_model: int):
        from taylor_series_linear_attention import TaylorSeriesLinearAttn

        super().__init__(TaylorSeriesLinearAttn(d_model, dim_head=8, heads=2, causal=True), state=2 * 73 * 9)


class Performer(Wrapped):
    package = "performer-pytorch"

    def __init__(self, d_model: int):
        from performer_pytorch import SelfAttention

        super().__init__(SelfAttention(d_model, causal=True, heads=2, dim_head=16, nb_features=32), state=2 * 32 * 17)


class GateLoop(Wrapped):
    package = "gateloop-transformer"

    def __init__(self, d_model: int):
        from gateloop_transformer import SimpleGateLoopLayer

        super().__init__(SimpleGateLoopLayer(d_model, prenorm=False), state=d_model)


class GateLooped(Wrapped):
    package = "gateloop-transformer"

    def __init__(self, d_model: int):
        from gateloop_transformer.gateloop_transformer import GateLoopedAttention

        super().__init__(GateLoopedAttention(d_model, heads=2), state=d_model**2)


class Mega(Wrapped):
    package = "mega-pytorch"

    def __init__(self, d_model: int):
        from mega_pytorch.mega_pytorch import MegaLayer

        super().__init__(MegaLayer(dim=d_model, ema_heads=4, attn_dim_qk=16, attn_dim_value=32), lambda t: 48 * t)


class MultiHeadedEMA(Wrapped):
    package = "mega-pytorch"

    def __init__(self, d_model: int):
        from mega_pytorch.mega_pytorch import MultiHeadedEMA

        super().__init__(MultiHeadedEMA(dim=d_model, heads=4), state=4 * d_model)


class GatedStateSpace(Wrapped):
    package = "gated-state-spaces-pytorch"

    def __init__(self, d_model: int):
        from gated_state_spaces_pytorch import GSS

        super().__init__(GSS(dim=d_model, dss_kernel_N=16, dss_kernel_H=32), state=2 * 16 * 32)


class MemoryEfficient(Wrapped):
    package = "memory-efficient-attention-pytorch"

    def __init__(self, d_model: int):
        from memory_efficient_attention_pytorch import Attention

        layer = Attention(dim=d_model, dim_head=16, heads=2, causal=True, memory_efficient=True, q_bucket_size=16)
        super().__init__(layer, state=lambda length: 64 * length)


class LinearTransformer(Wrapped):
    package = "linear-attention-transformer"

    def __init__(self, d_model: int):
        from linear_attention_transformer.linear_attention_transformer import SelfAttention

        super().__init__(SelfAttention(d_model, heads=2, causal=True), state=d_model**2)


class Retention(Wrapped):
    package = "yet-another-retnet"

    def __init__(self, d_model: int):
        from yet_another_retnet.retention import MultiScaleRetention

        super().__init__(MultiScaleRetention(d_model, num_heads=2), state=d_model**2 // 2)

    def forward(self, x):
        return self.layer(x, x, x)[0]


class SimplifiedStateSpace(Wrapped):
    """S5."""

    package = "s5-pytorch"

    def __init__(self, d_model: int):
        from s5 import S5

        super().__init__(S5(d_model, d_model), state=2 * d_model)


class SpatialGate(Wrapped):
    """gMLP; a weight of its own for each pair of positions, so that it has a longest sequence."""

    package = "g-mlp-pytorch"

    longest = 160

    def __init__(self, d_model: int):
        from g_mlp_pytorch.g_mlp_pytorch import gMLPBlock

        layer = gMLPBlock(dim=d_model, dim_ff=64, seq_len=self.longest, causal=True)
        super().__init__(layer, state=self.size)

    def size(self, length):
        if length > self.longest:
            raise ValueError(f"gMLP takes at most {self.longest} tokens")
        return 32 * length


class DiffLlama(Wrapped):
    """Differential attention, in the code of transformers."""

    package = "transformers"

    def __init__(self, d_model: int, layer_idx: int):
        from transformers.models.diffllama import DiffLlamaConfig
        from transformers.models.diffllama import modeling_diffllama as code

        config = DiffLlamaConfig(
            hidden_size=d_model, num_attention_heads=4, num_key_value_heads=4, attn_implementation="eager"
        )
        super().__init__(code.DiffLlamaAttention(config, layer_idx), lambda length: 2 * d_model * length)
        self.rotary = code.DiffLlamaRotaryEmbedding(config)

    def forward(self, x):
        steps = torch.arange(x.shape[1], device=x.device)
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device).triu(1)[None, None]
        return self.layer(x, position_embeddings=self.rotary(x, steps[None]), attention_mask=mask)[0]


class Mamba2(Wrapped):
    package = "transformers"

    def __init__(self, d_model: int, layer_idx: int):
        from transformers.models.mamba2.modeling_mamba2 import Mamba2Config, Mamba2Mixer

        config = Mamba2Config(
            hidden_size=d_model, num_heads=4, head_dim=d_model // 2, state_size=16, chunk_size=16, n_groups=1
        )
        super().__init__(Mamba2Mixer(config, layer_idx), state=2 * d_model * 16)


class GatedDeltaNet(Wrapped):
    """Gated DeltaNet, in the code of transformers (Qwen3-Next)."""

    package = "transformers"

    def __init__(self, d_model: int, layer_idx: int):
        from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextConfig, Qwen3NextGatedDeltaNet

        heads = {f"linear_num_{what}_heads": 2 for what in ("key", "value")}
        dims = {f"linear_{what}_head_dim": 16 for what in ("key", "value")}
        super().__init__(Qwen3NextGatedDeltaNet(Qwen3NextConfig(hidden_size=d_model, **heads, **dims), layer_idx), 512)


class Recurrent(Wrapped):
    """A GRU of PyTorch."""

    package = "torch"

    def __init__(self, d_model: int):
        super().__init__(nn.GRU(d_model, d_model, batch_first=True), state=d_model)


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
    parser.add_argument("names", nargs="*", help="classes; all by default")
    parser.add_argument("--out", type=Path, help="a file for the table")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = ["| mixer | package | check | replicas | loss of a tiny run |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "mixer").mkdir()
        for name, mixer in list(globals().items()):
            if not hasattr(mixer, "package") or (args.names and name not in args.names):
                continue
            (folder / "mixer" / f"{name}.yaml").write_text(f"name: {name}\n_target_: {__spec__.name}.{name}\n")
            try:
                package = f"{mixer.package} {version(mixer.package)}"
            except PackageNotFoundError:
                lines.append(f"| {name} | {mixer.package} | not installed | | |")
                continue
            says, how = checked(name, folder)
            cells = name, package, says, how, trained(name, folder) if how else ""
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
            print(lines[-1], flush=True)
    if args.out:
        args.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
