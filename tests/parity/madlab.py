"""mad-lab's own code, importable without CUDA extensions: https://github.com/athms/mad-lab, seen at 0f49a45.

These stand in for what needs CUDA or a package without a wheel:

* flash_attn's MHA, by a plain PyTorch module of its parameters (`Wqkv`, `out_proj`), rotary embedding included;
* mad-lab's RMSNorm on a GPU, by its own `rms_norm_ref`;
* the selective scan on a GPU, by mad-lab's own `selective_scan_ref`, and the causal convolution by `nn.Conv1d`.
"""

import importlib
import sys
import types
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
import yaml
from torch import nn

TASKS = {
    "icr": "in-context-recall",
    "ncr": "noisy-in-context-recall",
    "fcr": "fuzzy-in-context-recall",
    "mem": "memorization",
    "cmp": "compression",
    "sc": "selective-copying",
}


class MHA(nn.Module):
    """Causal attention with the parameters of flash_attn's module; rotary embedding in halves, not interleaved."""

    def __init__(self, embed_dim, num_heads, rotary_emb_dim=0, qkv_proj_bias=True, out_proj_bias=True, **others):
        super().__init__()
        assert others["causal"] and rotary_emb_dim == embed_dim // num_heads and others["softmax_scale"] is None
        self.heads, self.base = num_heads, others["rotary_emb_base"]
        self.Wqkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_proj_bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=out_proj_bias)

    def forward(self, x):
        q, k, v = self.Wqkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        o = F.scaled_dot_product_attention(self.rotated(q), self.rotated(k), v, is_causal=True)
        return self.out_proj(o.transpose(1, 2).flatten(2))

    def rotated(self, x):
        frequency = self.base ** (-torch.arange(0, x.shape[-1], 2, device=x.device) / x.shape[-1])
        angle = torch.arange(x.shape[-2], device=x.device)[:, None] * frequency
        one, other = x.chunk(2, dim=-1)
        turned = one * angle.cos() - other * angle.sin(), other * angle.cos() + one * angle.sin()
        return torch.cat(turned, dim=-1).to(x.dtype)  # under autocast x is bfloat16


def module(name: str, **contents) -> None:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(contents)


def load_madlab(root: Path) -> SimpleNamespace:
    """What is needed of mad-lab, without the layers that need CUDA to be imported."""
    sys.path.insert(0, str(root))
    module("flash_attn")
    module("flash_attn.modules")
    module("flash_attn.modules.mha", MHA=MHA)
    module("selective_scan_cuda")
    module("mad.model.layers", __path__=[str(root / "mad" / "model" / "layers")])  # its __init__ imports all layers
    layers = {
        name: importlib.import_module(f"mad.model.layers.{name}")
        for name in ("attention", "mamba", "mlp", "ops.norm.rmsnorm")
    }
    norm = layers["ops.norm.rmsnorm"]
    norm.RMSNorm.forward = lambda self, x: norm.rms_norm_ref(x, self.weight, self.bias, eps=self.eps)
    scan = importlib.import_module("mad.model.layers.ops.mamba_ssm.selective_scan_interface")
    mamba = layers["mamba"]
    mamba.selective_scan_fn, mamba.mamba_inner_fn = scan.selective_scan_ref, None
    model = importlib.import_module("mad.model")
    return SimpleNamespace(
        mixers={
            "attn": (layers["attention"].Attention, config(root, "layers", "mh-attention")),
            "mamba": (mamba.Mamba, config(root, "layers", "mamba")),
        },
        mamba=mamba,
        swiglu=layers["mlp"].SwiGLU,
        norm=norm.RMSNorm,
        language_model=model.LanguageModel,
        auto_encoder=model.AutoEncoder,
        wrapper=model.PLModelWrap,
        instances=importlib.import_module("mad.data.instances"),
        task_config=lambda task: config(root, "tasks", TASKS[task]),
    )


def config(root: Path, kind: str, name: str) -> dict:
    return yaml.safe_load((root / "configs" / kind / f"{name}.yml").read_text())


def build(madlab: SimpleNamespace, task: str, mixer: str, vocab_size: int, length: int, seed: int) -> nn.Module:
    """The model that mad-lab's benchmark.py makes: two layers of `mixer`, width 128, RMSNorm."""
    layer, options = madlab.mixers[mixer]
    options = options | {"dim": 128, "max_length": length}
    swiglu = {"dim": 128, "max_length": length}
    torch.manual_seed(seed)
    backbone = madlab.auto_encoder if task == "cmp" else madlab.language_model
    return backbone(
        dim=128,
        vocab_size=vocab_size,
        layers=[layer, madlab.swiglu] * 2,
        layer_cfgs=[dict(options), dict(swiglu), dict(options), dict(swiglu)],
        max_length=length,
        norm=madlab.norm,
    )
