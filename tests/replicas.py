"""A mixer under vmap over stacked replicas, as training runs it, against a loop over the replicas."""

import torch
from torch.func import functional_call, stack_module_state, vmap


def check_replicas(build, batch=2, length=37, d_model=32):
    """Outputs and gradients (inputs, parameters) of two stacked replicas equal those of each alone."""
    torch.manual_seed(0)
    models = [build(), build()]
    parameters, buffers = stack_module_state(models)
    x = torch.randn(2, batch, length, d_model, requires_grad=True)
    weight = torch.randn_like(x)

    stacked = vmap(lambda p, b, x: functional_call(models[0], (p, b), (x,)))(parameters, buffers, x)
    (stacked * weight).sum().backward()
    for r, model in enumerate(models):
        alone = x[r].detach().requires_grad_()
        out = model(alone)
        (out * weight[r]).sum().backward()
        torch.testing.assert_close(stacked[r], out, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(x.grad[r], alone.grad, rtol=1e-3, atol=1e-5)
        for name, parameter in model.named_parameters():
            got = parameters[name].grad[r]
            assert torch.allclose(got, parameter.grad, rtol=1e-3, atol=1e-4), f"replica {r}: {name}"
