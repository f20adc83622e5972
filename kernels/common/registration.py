"""How the Triton kernels become operators that PyTorch knows: under autograd, vmap, torch.compile and CUDA graphs.

Every `operator.py` does the same for each of its operators, but for those of heads, which have lists of gradients:

1. `operator` makes the function that launches the kernels opaque to the compiler, and says which arguments its results
   are like; if they are like none, `register_fake` gives the shapes of the results;
2. `register_gradient` says how it is differentiated, if it can be.

All tensors of an operator have an axis in front that replicas fold into: the batch, or groups of parameters. So the
replicas of a population become more sequences, groups or rows of one launch.

A CUDA graph captures the backward of an operator like that of any PyTorch operation, and with the same limit. While an
output of an earlier call is alive, autograd keeps the stream of that call for its leaves, and their gradients join the
capture through it. The default stream cannot join one: PyTorch then refuses to capture, for `x * y` too. So make
earlier calls on another stream, as warming up does, or delete their outputs. (PyTorch 2.13 has a switch for this case,
`torch.autograd.graph.set_override_stale_capture_stream`.)

A backward reads `ctx.saved_tensors` once: activation checkpointing allows no more.
"""

import inspect
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.library import CustomOpDef


def operator(
    name: str,
    *,
    like: str = "",
    refusal: str = "a fused operator cannot be differentiated twice: use backend='reference'",
) -> Callable[[Callable], CustomOpDef]:
    """Makes the function below it the operator `mixerlab::name`, which folds replicas into the leading axes under vmap.

    What has no type there, an argument or the result, is a tensor.

    Args:
        like: names of arguments, one for each result, whose shape and dtype it has. It is contiguous.
        refusal: the message of the RuntimeError that differentiating it raises, without `register_gradient`.
    """

    def define(launch: Callable) -> CustomOpDef:
        names = list(inspect.signature(launch).parameters)
        models = [names.index(name) for name in like.split()]
        returned = tuple[(Tensor,) * len(models)] if len(models) > 1 else Tensor  # type: ignore[misc]
        launch.__annotations__ = dict.fromkeys(names, Tensor) | {"return": returned} | launch.__annotations__
        defined = torch.library.custom_op(f"mixerlab::{name}", launch, mutates_args=())

        def fake(*inputs):
            results = tuple(inputs[i].new_empty(inputs[i].shape) for i in models)
            return results if len(results) > 1 else results[0]

        def refuse(ctx, *grads):
            raise RuntimeError(refusal)

        if models:
            defined.register_fake(fake)
        defined.register_autograd(refuse)
        defined.register_vmap(partial(fold_replicas, defined))
        return defined

    return define


def register_gradient(
    forward: CustomOpDef, backward: CustomOpDef | Callable, *, kept: str = "", save: Callable | None = None
) -> None:
    """Tells PyTorch how to differentiate an operator whose tensors come before its options.

    Args:
        backward: an operator that takes the gradient of the first result, then `ctx.saved_tensors` and the options, and
            gives the gradients of the tensors; or for these a function `(ctx, *grads)`.
        kept: names of the tensors among the arguments that the backward needs, all by default. `ctx.saved_tensors` are
            these and the results behind the first, which are made for the backward only; `ctx.options` the options.
        save: `(ctx, inputs, output)`, keeps something else in their place.
    """
    arguments = forward._opoverload._schema.arguments
    names = [argument.name for argument in arguments]
    tensors = sum("Tensor" in str(argument.type) for argument in arguments)
    needed = [names.index(name) for name in kept.split()] or range(tensors)

    def save_needed(ctx, inputs, output):
        ctx.options = inputs[tensors:]
        for_backward = output[1:] if isinstance(output, tuple) else ()
        ctx.save_for_backward(*(inputs[i] for i in needed), *for_backward)
        if for_backward:
            ctx.mark_non_differentiable(*for_backward)
            ctx.set_materialize_grads(False)  # None, not tensors of zeros, for their gradients

    def differentiate(ctx, *grads):
        if isinstance(backward, CustomOpDef):
            of_tensors = backward(grads[0], *ctx.saved_tensors, *ctx.options)
        else:
            of_tensors = backward(ctx, *grads)
        of_tensors = of_tensors if isinstance(of_tensors, tuple) else (of_tensors,)
        return *of_tensors, *[None] * (len(names) - tensors)

    forward.register_autograd(differentiate, setup_context=save or save_needed)


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
