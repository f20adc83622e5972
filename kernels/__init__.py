"""Operators with Triton kernels, each with a reference in PyTorch. Nothing here depends on models or training.

Each operator has a folder: `__init__.py` holds the function that others call, with its checks and the choice of a
backend; `reference.py` the same in PyTorch, if it is longer than a few lines; `operator.py` registers the kernels with
PyTorch; `triton_*.py` are the kernels and their launches. `common/` is what several of them share.
"""
