"""The target of a position that counts neither in a loss nor in a score; also for tasks, which know no PyTorch."""

IGNORE_INDEX = -100
