"""Kernel tests: buffers that show what nobody wrote, and a guard of the memory around them."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

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


def memory_of(argument: object) -> Iterator[tuple[int, int]]:
    """First and last address + 1 of what a kernel may touch of this argument."""
    if isinstance(argument, tuple):
        for part in argument:
            yield from memory_of(part)
    elif isinstance(argument, TensorDescriptor):  # one may reach from its base to another tensor
        last = sum((size - 1) * stride for size, stride in zip(argument.shape, argument.strides, strict=True))
        start = argument.base.data_ptr()
        yield start, start + (last + 1) * argument.base.element_size()
    elif isinstance(argument, torch.Tensor):
        storage = argument.untyped_storage()
        yield storage.data_ptr(), storage.data_ptr() + storage.nbytes()


@pytest.fixture(autouse=DEVICE == "cpu")
def own_memory_only(monkeypatch):
    """Fails where a kernel in the interpreter reads or writes outside of its arguments, which a GPU often lets pass."""
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    begin, load, store = executor._init_args_hst, builder.create_masked_load, builder.create_masked_store
    memory: list[tuple[int, int]] = []

    def begins(self, arguments, options):
        memory[:] = memory_of((*arguments, *options.values()))
        return begin(self, arguments, options)

    def check(pointers, mask):
        size = pointers.dtype.scalar.element_ty.primitive_bitwidth // 8
        touched = np.broadcast_arrays(pointers.data, mask.data)
        at = touched[0][touched[1].astype(bool)].astype(np.int64)
        inside = np.zeros(at.shape, bool)
        for start, end in memory:
            inside |= (at >= start) & (at + size <= end)
        assert inside.all(), f"{(~inside).sum()} of {at.size} elements are outside of the kernel's arguments"

    def loads(self, pointers, mask, *others, **options):
        check(pointers, mask)
        return load(self, pointers, mask, *others, **options)

    def stores(self, pointers, value, mask, *others):
        check(pointers, mask)
        return store(self, pointers, value, mask, *others)

    monkeypatch.setattr(executor, "_init_args_hst", begins)
    monkeypatch.setattr(builder, "create_masked_load", loads)
    monkeypatch.setattr(builder, "create_masked_store", stores)


@pytest.fixture
def device() -> str:
    """Where kernels run here: a GPU, or a CPU through the interpreter."""
    return DEVICE
