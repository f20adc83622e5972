"""How the Triton kernels become operators that PyTorch knows: under autograd, vmap, torch.compile and CUDA graphs.

Every `operator.py` does the same for each of its operators:

1. `torch.library.custom_op` makes the function that launches the kernels opaque to the compiler;
2. `register_fake` gives it the shapes of the results;
3. `register` says how it is differentiated and what it does under vmap.

All tensors of an operator have an axis in front that replicas fold into: the batch, or groups of parameters. So the
replicas of a population become more sequences, groups or rows of one launch.

A CUDA graph captures the backward of an operator like that of any PyTorch operation, and with the same limit. While an
output of an earlier call is alive, autograd keeps the stream of that call for its leaves, and their gradients join the
capture through it. The default stream cannot join one: PyTorch then refuses to capture, for `x * y` too. So make
earlier calls on another stream, as warming up does, or delete their outputs. (PyTorch 2.13 has a switch for this case,
`torch.autograd.graph.set_override_stale_capture_stream`.)
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

ONCE = "a fused operator cannot be differentiated twice: use backend='reference'"


def register(
    operator: torch.library.CustomOpDef,
    *,
    save: Callable | None = None,
    gradients: Callable | None = None,
    refusal: str = ONCE,
) -> None:
    """Tells PyTorch how to differentiate `operator`, and that vmap folds replicas into the leading axes.

    Args:
        operator: what `torch.library.custom_op` made.
        save: `(ctx, inputs, output)`, keeps what `gradients` needs; by default all inputs, which are tensors then, and
            the results behind the first, which are made for the backward only.
        gradients: `(ctx, *grads)`, the gradients of the inputs. An operator that is given none, as one that computes
            gradients itself, raises when it is differentiated.
        refusal: the message of that RuntimeError.
    """

    def refuse(ctx, *_):
        raise RuntimeError(refusal)

    def save_nothing(ctx, inputs, output):
        pass

    operator.register_autograd(gradients or refuse, setup_context=save or (save_all if gradients else save_nothing))
    operator.register_vmap(partial(fold_replicas, operator))


def save_all(ctx, inputs, output) -> None:
    for_backward = output[1:] if isinstance(output, tuple) else ()
    ctx.save_for_backward(*inputs, *for_backward)
    if for_backward:
        ctx.mark_non_differentiable(*for_backward)
        ctx.set_materialize_grads(False)  # None, not tensors of zeros, for their gradients


def fold_replicas(op: Callable, info, in_dims: tuple, *args):
    """A vmap rule: the replica axis moves in front of the leading axis, the two fold into one, and `op` runs once.

    Every tensor among the arguments and results must have such a leading axis.
    """
    replicas = info.batch_size

    def fold(arg, dim):
        if not isinstance(arg, Tensor):
            return arg
        arg = arg.expand(replicas, *arg.shape) if dim is None else arg.movedim(dim, 0)
        return arg.flatten(0, 1)

    result = op(*(fold(arg, dim) for arg, dim in zip(args, in_dims, strict=True)))
    if isinstance(result, Tensor):
        return result.unflatten(0, (replicas, -1)), 0
    return tuple(r.unflatten(0, (replicas, -1)) for r in result), (0,) * len(result)
