"""What the tests of recurrences share: inputs, and the comparison with an oracle."""

import torch
from fused_cases import traced


def random_inputs(seed, batch=2, length=17, heads=2, dim=16, dtype=torch.float64, device="cpu"):
    """Unit queries and keys, every fourth key repeated (a task's blank token), slow and fast decays."""
    rng = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(batch, length, heads, dim, generator=rng, dtype=torch.float64) for _ in range(3))
    k[:, ::4] = k[:, :1].clone()
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    log_decay = -(torch.rand(batch, length, heads, generator=rng, dtype=torch.float64) ** 3) * 2
    beta = torch.rand(batch, length, heads, generator=rng, dtype=torch.float64)
    gates = torch.promote_types(dtype, torch.float32)
    return [x.to(device, dtype) for x in (q, k, v)] + [x.to(device, gates) for x in (log_decay, beta)]


def value_and_grads(function, inputs):
    """The output and the gradient of every input, for a fixed random weighting of the output."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    return out, torch.autograd.grad(out, leaves, weights_of(out))


def weights_of(out):
    """Random weights that are exact in every dtype, so that an oracle in another dtype gets the same."""
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return weights.bfloat16().to(out)


def check(function, oracle, inputs, tolerance):
    """Output and every gradient within `tolerance` of the oracle on the same float64 values."""
    out, grads = value_and_grads(function, inputs)
    expected, expected_grads = value_and_grads(oracle, [x.double() for x in inputs])
    names = ("output", "q", "k", "v", "log_decay", "beta", "ridge")[: 1 + len(inputs)]
    for name, got, want in zip(names, (out, *grads), (expected, *expected_grads), strict=True):
        got = got.double()
        error = ((got - want).norm() / want.norm().clamp_min(0.1)).item()
        assert error < tolerance, f"{name}: relative error {error:.2e}"
        largest = ((got - want).abs().max() / want.abs().max().clamp_min(0.1)).item()
        assert largest < 3 * tolerance, f"{name}: largest error {largest:.2e} of the largest value"


def check_replicas(function, replicas):
    """`vmap` over two replicas of the inputs equals one call for each, and operators are traced as they run."""
    stacked = [torch.stack(pair) for pair in zip(*replicas, strict=True)]
    with traced():
        out, grads = value_and_grads(torch.func.vmap(function), stacked)
    leaves = [[x.detach().clone().requires_grad_() for x in inputs] for inputs in replicas]
    single = torch.stack([function(*inputs) for inputs in leaves])
    torch.testing.assert_close(out, single, rtol=0, atol=0)
    expected = torch.autograd.grad(single, [x for xs in leaves for x in xs], weights_of(out))
    for i, grad in enumerate(grads):
        pair = torch.stack((expected[i], expected[len(stacked) + i]))
        torch.testing.assert_close(grad, pair, rtol=1e-5, atol=1e-6)


def blank_inputs(seed, **sizes):
    """70 % of the positions hold one key, long steps, slow decay: what a task with blanks looks like."""
    q, k, v, log_decay, beta = random_inputs(seed, **sizes)
    blank = torch.rand(k.shape[:3], generator=torch.Generator().manual_seed(seed))[..., None] < 0.7
    k = torch.where(blank.to(k.device), k[:, :1], k)
    return [q, k, v, 0.005 * log_decay, 0.5 + 0.5 * beta]


def check_graphs(function, inputs):
    """The same output and gradients from one graph of torch.compile, and from replays of a CUDA graph."""
    expected, expected_grads = value_and_grads(function, inputs)
    compiled = torch.compile(function, fullgraph=True)
    out, grads = value_and_grads(compiled, inputs)
    torch.testing.assert_close((out, *grads), (expected, *expected_grads), rtol=0, atol=0)

    leaves = [torch.zeros_like(x).requires_grad_() for x in inputs]
    weights = weights_of(expected)
    warm_up = torch.cuda.Stream()
    with torch.cuda.stream(warm_up):
        torch.autograd.grad(function(*leaves), leaves, weights)
    torch.cuda.current_stream().wait_stream(warm_up)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function(*leaves)
        grads = torch.autograd.grad(out, leaves, weights)
    with torch.no_grad():
        for leaf, x in zip(leaves, inputs, strict=True):
            leaf.copy_(x)
    graph.replay()
    torch.testing.assert_close((out, *grads), (expected, *expected_grads), rtol=0, atol=0)
