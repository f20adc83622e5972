"""Published mixers keep the contract and train, and lengths that a layer does not take are padded causally."""

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from mixerlab.benchmarks.third_party import Published
from mixerlab.checks.contract import WIDTH, check_mixer
from mixerlab.mixers.wrapped import Wrapped


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "package"),
    [("RotaryAttention", "rotary_embedding_torch"), ("MinGRU", "minGRU_pytorch"), ("Titans", "titans_pytorch")],
)
def test_a_published_mixer_keeps_the_contract(layer, package):
    if not find_spec(package):
        pytest.skip(f"needs {package}")
    check_mixer(lambda: Published(WIDTH, layer))


class Chunks(nn.Module):
    """A sum within chunks of four, and of the chunks before through another weight; other lengths are refused."""

    def __init__(self, d_model):
        super().__init__()
        self.value, self.carry = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def forward(self, x):
        chunks = self.value(x).unflatten(1, (x.shape[1] // 4, 4))
        before = chunks.sum(2).cumsum(1) - chunks.sum(2)
        return (chunks.cumsum(2) + self.carry(before)[:, :, None]).flatten(1, 2), None


def test_a_layer_of_whole_chunks_keeps_the_contract_when_wrapped():
    assert check_mixer(lambda: Wrapped(Chunks(WIDTH), WIDTH, multiple_of=4)).unused is None
    x = torch.randn(2, 6, WIDTH)
    with pytest.raises(RuntimeError):
        Chunks(WIDTH)(x)
