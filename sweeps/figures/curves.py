"""Training curves of replicas that end at different epochs, made comparable."""

import numpy as np

Curve = dict[str, np.ndarray]  # of a replica: `epoch` and other columns of its metrics, float64 `[epochs]`


def carried_forward(curve: Curve, epochs: np.ndarray) -> Curve:
    """The curve of a finished replica with its last values at all later ones of `epochs`, those of its group.

    A replica that is frozen (`trainer.stop_when_perfect`, `trainer.stop_above`) has no rows after that, and keeps what
    it has learned: without them the mean over replicas would fall when the best one is done. One that diverged has
    nothing to keep.
    """
    if not len(curve["epoch"]):  # a stranger's file
        return curve
    later = epochs[epochs > curve["epoch"][-1]]
    held = {name: np.full(len(later), values[-1]) for name, values in curve.items()} | {"epoch": later}
    return {name: np.concatenate([values, held[name]]) for name, values in curve.items()}
