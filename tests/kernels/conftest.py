"""Kernel tests: buffers that show what nobody wrote."""

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def poisoned_empty(monkeypatch):
    """Fills what `torch.empty*` returns with NaN, so that an element that a kernel leaves out is seen."""

    def poisoned(create):
        def empty(*args, **kwargs):
            tensor = create(*args, **kwargs)
            return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor

        return empty

    monkeypatch.setattr(torch, "empty", poisoned(torch.empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned(torch.Tensor.new_empty))


@pytest.fixture
def device() -> str:
    """Where kernels run here: a GPU, or a CPU through the interpreter."""
    return DEVICE
