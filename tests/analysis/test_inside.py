"""What is measured is what a mixer computes, head by head."""

import pytest
import torch

from mixerlab.analysis import inside, measures
from mixerlab.mixers.attn import Attention
from mixerlab.mixers.base import AttentionParts, SequenceMixer
from mixerlab.mixers.gdn import GatedDeltaNet
from mixerlab.mixers.lla import LocalLinearAttention
from mixerlab.mixers.parallax import Parallax
from mixerlab.models.language_model import LanguageModel

WIDTH = 16
TOKENS = torch.arange(7)[None]


class Sinks(SequenceMixer):
    """Attention whose first keys stay visible, with layers that have the short names of what they give."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def attention_parts(self, x):
        ages = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
        seen = (ages >= 0) & ((ages < 2) | (torch.arange(x.shape[1]) < 1))
        return AttentionParts(*(layer(x).unflatten(-1, (2, -1)) for layer in (self.q, self.k, self.v)), 0.3, seen=seen)

    def forward(self, x):
        q, k, v, scale, *_, seen = self.attention_parts(x)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, seen, scale=scale)
        return mixed.transpose(1, 2).flatten(2)

    def project_out(self, y):
        return y


MIXERS = {
    "attn": lambda: Attention(WIDTH),
    "attn, window": lambda: Attention(WIDTH, window=3),
    "attn, grouped": lambda: Attention(WIDTH, num_heads=4, num_kv_heads=2, bias=True),
    "attn, sinks": Sinks,
    "parallax": lambda: Parallax(WIDTH, zero_init_rho=False, rope_on_rho=True),
    "lla": lambda: LocalLinearAttention(WIDTH, bandwidth=2.0),
    "parallax, gated": lambda: Parallax(WIDTH, num_heads=4, num_kv_heads=2, zero_init_rho=False, rho_gate=True),
}


def drawn(module):
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn_like(parameter) * 0.4
    return module.double().eval()


@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_the_weights_are_those_of_forward(name):
    mixer = drawn(MIXERS[name]())
    x = torch.randn(2, 12, WIDTH, dtype=torch.float64)
    parts = mixer.attention_parts(x)
    assert (parts.rho is None) == name.startswith("attn") and (parts.gate is None) == (name != "parallax, gated")
    rows = []
    for number in range(2):
        own = inside._of_sequence(parts, number)
        p, s = inside._weights(own)
        rows.append(((p if s is None else s) @ own.v).transpose(0, 1).flatten(1))
    torch.testing.assert_close(mixer.project_out(torch.stack(rows)), mixer(x))


def model_of(*makers):
    makers = iter(makers)
    return drawn(LanguageModel(8, WIDTH, n_layers=2, make_mixer=lambda: next(makers)()))


def test_rows_of_a_model():
    """Of a gated layer and of a mixer without attention: names, and numbers that are written out here."""
    model = model_of(MIXERS["parallax, gated"], lambda: GatedDeltaNet(WIDTH, num_heads=2))
    tokens = torch.randint(8, (3, 11))
    rows = list(inside.measure(model, tokens))
    of = {(row["layer"], row["measure"]): row for row in rows}
    assert len(of) == len(rows)
    assert {name for layer, name in of if layer == 2} == {
        f"{kind} {name}"
        for kind in ("norm", "srank")
        for name, module in model.blocks[1].mixer.named_modules()
        for name in [inside.WEIGHTS.get(name, f"{name}.weight")]
        if isinstance(module, torch.nn.Linear)
    }
    mixer = model.blocks[0].mixer
    x = model.blocks[0].mixer_norm(model.embedding(tokens))
    gate = mixer.g_proj(x).sigmoid()[:, 1:]
    assert of[1, "gate"]["mean"] == pytest.approx(gate.mean().item())
    assert of[1, "gate"]["q95"] == pytest.approx(gate.flatten().quantile(0.95).item())
    norm = pytest.approx(mixer.r_proj.weight.norm().item())
    assert of[1, "norm W_R"] == {"layer": 1, "measure": "norm W_R", "mean": norm}
    k_heads = mixer.k_proj.weight.unflatten(0, (2, 4))
    r_heads = mixer.r_proj.weight.unflatten(0, (4, 4))
    ranks = [measures.stable_rank(r_heads[head].T @ k_heads[head // 2]) for head in range(4)]
    assert of[1, "srank W_RK"]["mean"] == pytest.approx(torch.stack(ranks).mean().item())
    assert not any(hooks for module in model.modules() if (hooks := module._forward_pre_hooks))


def test_weights_of_layers_called_as_activations_have_other_names():
    model = model_of(Sinks, Sinks)
    found = {row["measure"]: row["mean"] for row in inside.measure(model, TOKENS)}
    mixer = model.blocks[1].mixer
    assert found["norm q.weight"] == pytest.approx(mixer.q.weight.norm().item())
    assert found["norm q"] != found["norm q.weight"] and "srank q" not in found


def test_maps_are_of_every_layer_and_head():
    model = model_of(MIXERS["attn"], MIXERS["parallax"])
    found = list(inside.score_maps(model, torch.randint(8, (1, 7))))
    assert [(layer, kind, weights.shape) for layer, kind, weights in found] == [
        (layer, kind, (2, 7, 7)) for layer, kind in ((1, "p"), (2, "p"), (2, "s"))
    ]


def test_blocks_that_share_a_mixer_each_have_their_own_input():
    one = MIXERS["attn"]()
    apart, shared = model_of(MIXERS["attn"], MIXERS["attn"]), model_of(lambda: one, lambda: one)
    apart.load_state_dict(shared.state_dict())
    tokens = torch.randint(8, (1, 7))
    maps = [inside.score_maps(model, tokens) for model in (apart, shared)]
    for (layer, _, expected), (its_layer, _, found) in zip(*maps, strict=True):
        assert layer == its_layer and (found == expected).all()
    assert len(list(inside.measure(shared, tokens))) == len(list(inside.measure(apart, tokens)))
