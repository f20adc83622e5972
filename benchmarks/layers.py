"""Single layers beside those of flash-linear-attention, and the bare gated delta rule beside its published kernels.

    python -m mixerlab.benchmarks.layers --output FOLDER
    python -m mixerlab.benchmarks.layers --layers mesa --output FOLDER

Batch 128, width 128, float32 parameters, bfloat16 inputs and autocast. fla's layer has the values of our parameters:
both compute one function. Times are medians over replays of a CUDA graph of forward and backward, with the gradients of
the inputs and of all parameters. What tunes itself does so before, with fla for minutes.

The errors are relative Frobenius errors on the first two sequences against our layer with `backend=reference` in
float64: of the output, and of the gradients of the inputs the largest. The operator's inputs are q and k of unit norm,
v, and in float32 the log decay and beta.

`fla` means its Triton kernels, also where FlashQLA or TileLang are installed. Its layers need
`pip install -e '.[fla]'`, FlashQLA `pip install flash-qla`.
"""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mixerlab.benchmarks.measuring import Table, forward_and_gradients, graph_ms, options_on_gpu, parser_of
from mixerlab.benchmarks.peers import peer
from mixerlab.kernels.gated_delta_rule import gated_delta_rule
from mixerlab.mixers.base import SequenceMixer
from mixerlab.mixers.gdn import GatedDeltaNet
from mixerlab.mixers.mesa import MesaNet

BATCH, WIDTH, COMPARED = 128, 128, 2
OWN: dict[str, Callable[..., SequenceMixer]] = {"gdn": GatedDeltaNet, "mesa": MesaNet}
FLA: dict[str, tuple[str, dict]] = {"gdn": ("GatedDeltaNet", {"expand_v": 2}), "mesa": ("MesaNet", {})}
OPERATOR = "gated delta rule"
OPERATORS = {"fla": "fla.ops.gated_delta_rule", "flash_qla": "flash_qla"}
HEADS = {"gdn": (2,), "mesa": (1, 2), OPERATOR: (1,)}
LENGTHS = {name: (1024, 2048) if name == OPERATOR else (128, 512, 1024, 2048) for name in HEADS}
# fla's names of a layer's parameters, where they are not ours.
RENAMED = {"norm": "o_norm", "ridge_logit": "lambda_params", **{f"{one}_conv": f"{one}_conv1d" for one in "qkv"}}


class Case(NamedTuple):
    inputs: list[Tensor]
    ours: Callable
    reference: Callable  # on the CPU
    peers: Mapping[str, Callable]


def layer_case(name: str, heads: int, length: int, batch: int, device: torch.device) -> Case:
    ours = OWN[name](WIDTH, num_heads=heads)
    reference: Any = copy.deepcopy(ours).double()
    reference.backend = "reference"
    x = torch.randn(batch, length, WIDTH, device=device).bfloat16()
    peers = {}
    if layers := peer("fla.layers"):  # with the parameters of ours
        kind, options = FLA[name]
        theirs = getattr(layers, kind)(hidden_size=WIDTH, num_heads=heads, head_dim=WIDTH // heads, **options)
        parts = ((key.partition("."), value) for key, value in ours.state_dict().items())
        theirs.load_state_dict({RENAMED.get(first, first) + dot + rest: value for (first, dot, rest), value in parts})
        peers["fla"] = theirs.to(device)
    return Case([x], ours.to(device), reference, peers)


def operator_case(heads: int, length: int, batch: int, device: torch.device) -> Case:
    q, k, v = torch.randn(3, batch, length, heads, WIDTH // heads, device=device)
    q, k, v = (x.bfloat16() for x in (F.normalize(q, dim=-1), F.normalize(k, dim=-1), v))
    log_decay, beta = torch.randn(2, batch, length, heads, device=device)
    inputs = [q, k, v, F.logsigmoid(log_decay + 3), beta.sigmoid()]
    found = {name: peer(module) for name, module in OPERATORS.items()}
    peers = {name: module.chunk_gated_delta_rule for name, module in found.items() if module}
    return Case(inputs, gated_delta_rule, partial(gated_delta_rule, backend="reference"), peers)


def measure(case: Case) -> Iterator[dict[str, object]]:
    """Times and errors beside each peer; one that fails has a line instead."""
    d_o = torch.randn_like(case.inputs[0])  # the output has the shape of the first input
    *first, first_d_o = (x[:COMPARED].cpu().double() for x in (*case.inputs, d_o))
    exact = forward_and_gradients(case.reference, first, first_d_o)

    def measured(who: str, function: Callable) -> dict[str, float]:
        run = partial(forward_and_gradients, function, case.inputs, d_o)
        pairs = zip([x[:COMPARED].cpu().double() for x in run()], exact, strict=True)
        output, *gradients = torch.stack([(got - expected).norm() / expected.norm() for got, expected in pairs])
        worst = torch.stack(gradients).max()  # NaN if one is
        return {f"{who} ms": graph_ms(run), f"{who} error": output.item(), f"{who} gradient error": worst.item()}

    own = measured("ours", case.ours)
    for name, function in case.peers.items():
        try:
            other = measured("peer", function)
        except Exception as error:  # of each peer's own kind
            print(f"{name} is left out here: {type(error).__name__}: {error}", flush=True)
            continue
        yield {"peer": name, **own, **other, "peer / ours": other["peer ms"] / own["ours ms"]}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--layers", nargs="+", choices=HEADS, default=list(HEADS))
    options = options_on_gpu(parser)
    os.environ.update(FLA_FLASH_QLA="0", FLA_TILELANG="0")
    table, device = Table(options.output, "layers"), torch.device("cuda")
    torch.manual_seed(0)
    for name in options.layers:
        make = operator_case if name == OPERATOR else partial(layer_case, name)
        for heads in HEADS[name]:
            for length in LENGTHS[name]:
                for row in measure(make(heads, length, BATCH, device)):
                    table.add({"layer": name, "heads": heads, "T": length, **row})
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
