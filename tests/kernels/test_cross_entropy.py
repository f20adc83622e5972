"""The fused mean loss against its plain formula in float64: values, counts and gradients."""

import pytest
import torch
from cases import BACKENDS, check, double, draw, run, same_bits

from mixerlab.kernels.fused import cross_entropy


def scored_logits(rows, vocabulary, device):
    """Logits with a wide range; a third of the positions have no target."""
    (logits,) = draw((*rows, vocabulary), device=device)
    targets = torch.randint(vocabulary, rows, generator=torch.Generator().manual_seed(1))
    targets.flatten()[::3] = -100
    return 5 * logits, targets.to(device)


def plain_cross_entropy(logits, targets):
    """The mean loss and the count of each group, one position after the other."""
    log_probability = logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0].flatten(1)
    scored = (targets != -100).flatten(1)
    count = scored.sum(dim=1)
    return torch.where(scored, -log_probability, 0.0).sum(dim=1) / count.clamp(min=1), count


def mean_loss(*args, **options):
    return cross_entropy(*args, **options)[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rows, vocabulary", [((2, 3, 107), 8), ((3, 5), 50), ((1, 4), 2500), ((3, 0), 5)], ids=str)
def test_is_the_mean_of_the_plain_losses(device, rows, vocabulary, backend):
    """2500 logits are three blocks, the last one not full; 321 rows of 8 are two programs of a group.

    In the last of three groups nothing counts.
    """
    logits, targets = scored_logits(rows, vocabulary, device)
    targets[2:] = -100
    actual = run(lambda *a: mean_loss(*a, backend=backend), [logits, targets])
    check(actual, run(lambda *a: plain_cross_entropy(*a)[0], double([logits, targets])))
    assert not actual[1][targets == -100].any()
    _, count = cross_entropy(logits, targets, backend=backend)
    assert count.dtype == torch.float32 and torch.equal(count, plain_cross_entropy(logits, targets)[1].float())


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_extreme_logits(device, backend):
    """Large logits do not overflow; a loss much smaller than the logits keeps its digits."""
    logits = torch.tensor([[[1e4, -1e4, 0.0]], [[100.0, 95.0, 94.0]]], device=device)
    targets = torch.tensor([[1], [0]], device=device)
    logits.requires_grad_()
    loss = mean_loss(logits, targets, backend=backend)
    expected, _ = plain_cross_entropy(logits.detach().double(), targets)
    torch.testing.assert_close(loss.detach().double(), expected, rtol=2e-5, atol=0)
    (grad,) = torch.autograd.grad(loss.sum(), logits)
    assert grad.isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("rows, vocabulary", [((128, 128), 16), ((64, 32), 8192), ((3, 700), 129)], ids=str)
def test_in_bfloat16(device, rows, vocabulary):
    logits, targets = scored_logits(rows, vocabulary, device)
    same_bits(mean_loss, lambda *a: plain_cross_entropy(*a)[0], [logits.bfloat16(), targets])
