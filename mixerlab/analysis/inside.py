"""Takes the measures of a trained model, layer by layer."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixerlab.analysis import measures
from mixerlab.kernels.parallax.reference import visible_keys
from mixerlab.mixers.base import AttentionParts, SequenceMixer

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
# What the paper calls the weights of these layers; those of others have their own names, `gate.weight`.
WEIGHTS = {"q_proj": "W_Q", "k_proj": "W_K", "v_proj": "W_V", "o_proj": "W_O", "r_proj": "W_R"}
CIRCUITS = {"W_QK": ("W_Q", "W_K"), "W_RK": ("W_R", "W_K"), "W_OV": ("W_O", "W_V")}


@torch.no_grad()
def measure(model: nn.Module, tokens: Tensor) -> Iterator[dict[str, Any]]:
    """A row for each layer and measure: `layer` from 1, `measure`, its `mean` and `QUANTILES`.

    Those of activations are over sequences, heads and positions but the first, which sees only itself; those of
    circuits over heads. A weight has one value, and no quantiles.

    Args:
        model: with `blocks`, each of which has a `mixer`.
        tokens: int64 `[B, T]`.
    """
    for layer, (mixer, x) in enumerate(_inputs(model, tokens), start=1):
        parts = _parts_of(mixer, x)
        found = dict(_of_weights(mixer, parts))
        if parts is not None:
            sequences = [_of_activations(_of_sequence(parts, number)) for number in range(len(x))]
            found |= {name: torch.stack([each[name] for each in sequences]) for name in sequences[0]}
        for name, values in found.items():
            yield {"layer": layer, "measure": name, **_summary(values)}


@torch.no_grad()
def score_maps(model: nn.Module, tokens: Tensor) -> Iterator[tuple[int, str, np.ndarray]]:
    """Layer, `p` or `s`, and the weights `[H, T, T]`, queries down, of a sequence of tokens, int64 `[1, T]`."""
    for layer, (mixer, x) in enumerate(_inputs(model, tokens), start=1):
        if (parts := _parts_of(mixer, x)) is not None:
            for name, weights in zip(("p", "s"), _weights(_of_sequence(parts, 0)), strict=True):
                if weights is not None:
                    yield layer, name, weights.cpu().numpy()


def _inputs(model: nn.Module, tokens: Tensor) -> list[tuple[SequenceMixer, Tensor]]:
    """The mixers of a model, and what each gets."""
    mixers: list[Any] = [block.mixer for block in model.blocks]  # type: ignore[union-attr]
    read: list[Tensor] = []
    # With `model.shared_mixer` several blocks have one.
    hooks = [m.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0])) for m in dict.fromkeys(mixers)]
    model(tokens)
    for hook in hooks:
        hook.remove()
    return list(zip(mixers, read, strict=True))


def _parts_of(mixer: SequenceMixer, x: Tensor) -> AttentionParts | None:
    if (parts := mixer.attention_parts(x)) is None:
        return None
    (batch, length), (heads, head_dim) = x.shape[:2], parts.q.shape[-2:]
    shapes = {key: value.shape for key, value in parts._asdict().items() if isinstance(value, Tensor)}
    right: dict[str, tuple[int, ...]] = dict.fromkeys(("q", "rho"), (batch, length, heads, head_dim))
    right |= dict.fromkeys(("k", "v"), (batch, length, parts.k.shape[-2], head_dim))
    right |= {"gate": (batch, length, heads), "seen": (length, length)}
    if any(shape != right[key] for key, shape in shapes.items()) or heads % parts.k.shape[-2]:
        told = ", ".join(f"{key} {list(shape)}" for key, shape in {"x": x.shape, **shapes}.items())
        raise ValueError(f"attention_parts: of {told} are not the shapes that mixerlab.mixers.base.AttentionParts has")
    return parts


def _of_sequence(parts: AttentionParts, number: int) -> AttentionParts:
    """The parts of one sequence in float64, `[H, T, D]` and the gate `[H, T]`; keys and values once for each query."""
    heads = parts.q.shape[2]

    def own(x: Tensor) -> Tensor:
        return x[number].double().transpose(0, 1).repeat_interleave(heads // x.shape[2], dim=0)

    rho = None if parts.rho is None else own(parts.rho)
    gate = None if parts.gate is None else parts.gate[number].double().T
    return parts._replace(q=own(parts.q), k=own(parts.k), v=own(parts.v), rho=rho, gate=gate)


def _weights(parts: AttentionParts) -> tuple[Tensor, Tensor | None]:
    """p and, with a probe, s."""
    seen = visible_keys(parts.q.shape[1], None, parts.q.device) if parts.seen is None else parts.seen
    p = measures.softmax_weights(parts.q, parts.k, parts.scale, seen)
    return p, None if parts.rho is None else measures.combined_weights(p, parts.rho, parts.k)


def _of_activations(parts: AttentionParts) -> dict[str, Tensor]:
    """Each measure of one sequence, `[H, T - 1]`."""
    p, s = _weights(parts)
    vk, vv, kk = (measures.covariance(p, *pair) for pair in ((parts.v, parts.k), (parts.v,) * 2, (parts.k,) * 2))
    found = {f"norm {name}": getattr(parts, name).norm(dim=-1) for name in ("q", "k", "v")}
    found |= {
        "sink p": measures.sink(p),
        "entropy p": measures.entropy(p),
        "corr": measures.correlation_norm(vk, vv, kk),
    }
    if s is not None and parts.rho is not None:
        found |= {
            "norm rho": parts.rho.norm(dim=-1),
            "cor": measures.correction_to_output(p, s, parts.v),
            "cpa": measures.probe_alignment(vk, parts.rho),
            "min s": s.amin(dim=-1),
            "max s": s.amax(dim=-1),
            "sink s": measures.combined_sink(s),
        }
    if parts.gate is not None:
        found["gate"] = parts.gate
    return {name: values[:, 1:] for name, values in found.items()}


def _of_weights(mixer: SequenceMixer, parts: AttentionParts | None) -> Iterator[tuple[str, Tensor]]:
    """Frobenius norm and stable rank of each linear layer, `[]`, and the stable rank of each head's circuits, `[H]`."""
    weights = {
        WEIGHTS.get(name, f"{name}.weight"): module.weight.double()
        for name, module in mixer.named_modules()
        if isinstance(module, nn.Linear)
    }
    for name, weight in weights.items():
        yield f"norm {name}", weight.norm()
        yield f"srank {name}", measures.stable_rank(weight)
    if parts is None:
        return
    heads, head_dim = parts.q.shape[2:]
    for name, pair in CIRCUITS.items():
        if weights.keys() >= set(pair):
            rows = [weights[one].T if one == "W_O" else weights[one] for one in pair]
            by_head = [one.unflatten(0, (-1, head_dim)) for one in rows]
            left, right = (one.repeat_interleave(heads // len(one), dim=0) for one in by_head)
            yield f"srank {name}", measures.stable_rank(measures.circuit(left, right))


def _summary(values: Tensor) -> dict[str, float]:
    flat = values.flatten()
    levels = torch.tensor(list(QUANTILES.values()) if len(flat) > 1 else [], dtype=flat.dtype, device=flat.device)
    numbers = torch.cat((flat.nanmean()[None], flat.nanquantile(levels))).tolist()
    return dict(zip(("mean", *QUANTILES), numbers, strict=False))
