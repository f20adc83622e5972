"""Operators with Triton kernels, each with a reference in PyTorch. Nothing here depends on models or training.

Each operator has a folder: `__init__.py` holds the function that others call, with its checks and the choice of a
backend; `reference.py` the same in PyTorch, if it is longer than a few lines; `operator.py` the PyTorch operators that
launch the kernels; `triton_*.py` the kernels, and launches that several operators share. `common/` is what several
folders share. Triton is optional: what needs it is imported only when its backend runs.
"""
