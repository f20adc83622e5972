"""PyTorch's attention under vmap: each replica's is what it is alone, forward and backward."""

import warnings
from contextlib import contextmanager
from functools import partial
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from cases import draw, run
from torch import nn
from torch.func import vmap

from mixerlab.kernels.softmax_attention import under_vmap
from mixerlab.kernels.softmax_attention.under_vmap import replicas_in_batch
from mixerlab.mixers.base import SequenceMixer
from mixerlab.models.language_model import LanguageModel
from mixerlab.training.execution import choose_execution
from mixerlab.training.population import Population

REPLICAS = 3
BF16 = torch.bfloat16
attention = F.scaled_dot_product_attention


@contextmanager
def folded_calls():
    """What `_attention` is called with meanwhile. PyTorch's own rule on a CPU warns that it loops, an error here."""
    with warnings.catch_warnings(), mock.patch.object(under_vmap, "_attention", wraps=under_vmap._attention) as calls:
        warnings.simplefilter("error")
        yield calls.call_args_list


def check(shapes, options, dims, *, dtype=torch.float32, device="cpu"):
    one_replica = partial(attention, **options)

    def alone(*inputs):
        own = ([x if d is None else x.select(d, r) for x, d in zip(inputs, dims, strict=True)] for r in range(REPLICAS))
        return torch.stack([one_replica(*tensors) for tensors in own])

    inputs = draw(*shapes, device=device, dtype=dtype)
    with replicas_in_batch(), folded_calls() as calls:
        got = run(vmap(one_replica, in_dims=dims), inputs)
    assert len(calls) == 1
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == BF16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(got, run(alone, inputs), **tolerance)


CAUSAL = {"is_causal": True}
HEADS = (REPLICAS, 2, 4, 8, 16)  # replicas, batch, heads, positions, head size


@pytest.mark.parametrize(
    ("shapes", "options", "dims"),
    [
        ([HEADS] * 3, CAUSAL, (0, 0, 0)),
        ([HEADS, (3, 2, 4, 9, 16), (3, 2, 4, 9, 16)], {}, (0, 0, 0)),
        ([HEADS, (3, 2, 2, 8, 16), (3, 2, 2, 8, 16)], {"is_causal": True, "enable_gqa": True}, (0, 0, 0)),
        ([(3, 8, 16)] * 3, {"is_causal": True, "scale": 0.3}, (0, 0, 0)),
        ([(3, 2, 5, 4, 8, 16)] * 3, {}, (0, 0, 0)),
        ([(2, 4, 8, 3, 16), HEADS, (2, 4, 8, 16)], {}, (3, 0, None)),
        ([(3, 1, 4, 5, 16), HEADS, HEADS], {}, (0, 0, 0)),  # the same queries for each sequence
        ([(3, 4, 5, 16), HEADS, HEADS], {}, (0, 0, 0)),
        ([(2, 4, 8, 16)] * 2 + [HEADS], {}, (None, None, 0)),
        ([*[HEADS] * 3, (3, 8, 8)], {}, (0, 0, 0, 0)),
        ([*[HEADS] * 3, (4, 8, 8)], {}, (0, 0, 0, None)),
        ([*[HEADS] * 3, (2, 1, 8, 8)], {}, (0, 0, 0, None)),
    ],
)
def test_each_replica_attends_as_alone(shapes, options, dims):
    check(shapes, options, dims)


def test_bool_masks_and_autocast():
    x = torch.randn(HEADS)
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    with replicas_in_batch(), folded_calls() as calls, torch.autocast("cpu", BF16):
        got = vmap(lambda x: attention(x.to(BF16), x, x, mask))(x)
        alone = torch.stack([attention(one.to(BF16), one, one, mask) for one in x])
    assert torch.equal(got, alone) and got.dtype == BF16 and len(calls) == 1 + REPLICAS


def test_multi_head_attention():
    modules = [nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(REPLICAS)]
    parameters, _ = torch.func.stack_module_state(modules)
    x = torch.randn(REPLICAS, 2, 8, 16)

    def one_replica(parameters, x):
        return torch.func.functional_call(modules[0], parameters, (x, x, x), {"need_weights": False})[0]

    with replicas_in_batch(), folded_calls() as calls:
        got = vmap(one_replica)(parameters, x)
    alone = torch.stack([module(y, y, y, need_weights=False)[0] for module, y in zip(modules, x, strict=True)])
    torch.testing.assert_close(got, alone)
    assert len(calls) == 1


class PlainMixer(SequenceMixer):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(16, 16)

    def forward(self, x):
        x = self.proj(x)[:, None]
        return attention(x, x, x, **CAUSAL)[:, 0]


def test_a_population_computes_so():
    population = Population(lambda: LanguageModel(8, 16, n_layers=1, make_mixer=PlainMixer), [0, 1])
    tokens = torch.randint(8, (2, 3, 11))
    with folded_calls() as calls:
        choose_execution(population, "vmap", tokens, slice(None), bf16=False)
        assert len(calls) == 2  # in training and in evaluation mode
        population(tokens)
        population(tokens)
    assert len(calls) == 4


def test_dropout_is_left_to_vmap_which_refuses_it():
    x = torch.randn(HEADS)
    with replicas_in_batch(), pytest.raises(RuntimeError, match="random"):
        vmap(lambda x: attention(x, x, x, dropout_p=0.1))(x)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, BF16])
@pytest.mark.parametrize("length", [100, 200, 1024])
def test_each_replica_attends_as_alone_on_a_gpu(length, dtype):
    check([(REPLICAS, 4, 2, length, 64)] * 3, CAUSAL, (0, 0, 0), dtype=dtype, device="cuda")
