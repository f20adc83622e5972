"""How the Triton kernels become operators that PyTorch knows: under autograd, vmap, torch.compile and CUDA graphs.

Every `operator.py` does the same for each of its operators:

1. `torch.library.custom_op` makes the function that launches the kernels opaque to the compiler;
2. `register` says how it is differentiated and what it does under vmap, and which arguments its results are like;
3. if they are like none, `register_fake` gives the shapes of the results.

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


def register(
    operator: torch.library.CustomOpDef,
    *,
    like: str = "",
    kept: str = "",
    save: Callable | None = None,
    backward: Callable | None = None,
    gradients: Callable | None = None,
    options: int = 0,
    refusal: str = "a fused operator cannot be differentiated twice: use backend='reference'",
) -> None:
    """Tells PyTorch how to differentiate `operator`, and that vmap folds replicas into the leading axes.

    Args:
        operator: what `torch.library.custom_op` made.
        like: names of arguments, one for each result, whose shape and dtype it has. It is contiguous.
        kept: names of the tensors among the arguments that the backward needs, all by default. `ctx.saved_tensors` are
            these and the results behind the first, which are made for the backward only; `ctx.options` the options.
        save: `(ctx, inputs, output)`, keeps something else in their place.
        backward: the operator that takes the gradient of the first result, then `ctx.saved_tensors` and the options,
            and gives the gradients of the tensors.
        gradients: in its place `(ctx, *grads)`, the gradients of the inputs but for the options. An operator that is
            given neither, as one that computes gradients itself, raises when it is differentiated.
        options: how many of the last arguments are not tensors.
        refusal: the message of that RuntimeError.
    """
    names = [argument.name for argument in operator._opoverload._schema.arguments]
    if like:
        models = [names.index(name) for name in like.split()]

        def fake(*inputs):
            results = tuple(inputs[i].new_empty(inputs[i].shape) for i in models)
            return results if len(results) > 1 else results[0]

        operator.register_fake(fake)

    tensors = len(names) - options
    needed = [names.index(name) for name in kept.split()] or range(tensors)

    def save_needed(ctx, inputs, output):
        ctx.options = inputs[tensors:]
        for_backward = output[1:] if isinstance(output, tuple) else ()
        ctx.save_for_backward(*(inputs[i] for i in needed), *for_backward)
        if for_backward:
            ctx.mark_non_differentiable(*for_backward)
            ctx.set_materialize_grads(False)  # None, not tensors of zeros, for their gradients

    def differentiate(ctx, *grads):
        if backward is not None:
            of_tensors = backward(grads[0], *ctx.saved_tensors, *ctx.options)
        elif gradients is not None:
            of_tensors = gradients(ctx, *grads)
        else:
            raise RuntimeError(refusal)
        return *(of_tensors if isinstance(of_tensors, tuple) else (of_tensors,)), *[None] * options

    operator.register_autograd(differentiate, setup_context=save or (save_needed if backward or gradients else None))
    operator.register_vmap(partial(fold_replicas, operator))


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
