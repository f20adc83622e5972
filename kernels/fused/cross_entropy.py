"""Cross-entropy per position in one launch each way: no float32 copy of the logits, no stored probabilities."""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.dispatch import resolve_backend
from kernels.fused.operators import register_gradient, register_replicas, why_not_triton

IGNORE_INDEX = -100


def cross_entropy(logits: Tensor, targets: Tensor, *, backend: str = "auto") -> Tensor:
    """`log sum_v exp(logits_v) - logits_target` at each position, in nats.

    Args:
        logits: `[..., V]`.
        targets: int64 `[...]`, from 0 to V - 1 (not checked on a GPU), or -100 for a position without a loss.
        backend: `auto`, `reference` (PyTorch) or `triton` (float32 and bfloat16, arithmetic in float32).

    Returns:
        `[...]`, float32 (float64 for float64 logits); 0, without a gradient, where the target is -100.

    Raises:
        ValueError: shapes that do not fit, or a backend that cannot run here.
    """
    if logits.shape[:-1] != targets.shape:
        raise ValueError(
            f"logits has shape {tuple(logits.shape)} and targets {tuple(targets.shape)}: pass logits [..., V]"
            " and targets [...]"
        )
    why = why_not_triton(logits)
    rows, flat = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    if resolve_backend(backend, logits.device, supported=not why, why=why) == "reference":
        wide = rows.to(torch.promote_types(logits.dtype, torch.float32))
        return F.cross_entropy(wide, flat, ignore_index=IGNORE_INDEX, reduction="none").view(targets.shape)
    return losses(rows, flat)[0].view(targets.shape)


@torch.library.custom_op("mixerlab::cross_entropy", mutates_args=())
def losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and log sum exp of each row of `[rows, V]`, both float32 `[rows]`."""
    from kernels.fused import triton_cross_entropy  # only where it runs: Triton is optional

    return triton_cross_entropy.forward(logits, targets)


@torch.library.custom_op("mixerlab::cross_entropy_backward", mutates_args=())
def losses_backward(grad: Tensor, logits: Tensor, targets: Tensor, log_sum: Tensor) -> Tensor:
    """Gradient of `logits`."""
    from kernels.fused import triton_cross_entropy

    return triton_cross_entropy.backward(grad, logits, targets, log_sum)


@losses.register_fake
def _(logits, targets):
    return tuple(logits.new_empty(targets.shape, dtype=torch.float32) for _ in range(2))


@losses_backward.register_fake
def _(grad, logits, targets, log_sum):
    return logits.new_empty(logits.shape)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # none for the log sum


def _gradients(ctx, grad, _):
    return losses_backward(grad, *ctx.saved_tensors), None


register_gradient(losses, losses_backward, _save, _gradients)
register_replicas(losses, losses_backward)
