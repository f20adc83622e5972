"""Which run a config describes: its identity, `run_id`, and its replicas."""

import functools
import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

# Keys that cannot change the result by more than rounding. Those of `task` are labels and the lists that they choose
# from: what they resolve to stands beside them.
VOLATILE = (
    "results_dir",
    "force",
    "dry_run",
    "sweep",
    "trainer.progress",
    "trainer.checkpoint_every",
    "trainer.cuda_graph",
    "trainer.keep_weights",
    "trainer.snapshots",
    "trainer.replicas",
    "trainer.compile",
    "trainer.accumulate",
    "logger",
    "model.match_params",  # d_ff says what came of it
    "task.setting",
    "task.baseline",
    "task.changes",
    "task.levels",
    "task.allow_shared_rows",
)
# The hash of a dataset's content stands in the identity for where it was read.
DATA_PATHS, DATA_DIGEST = ("task.data_dir", "task.path"), "task.data_sha256"
# Keys that take one value or a list of them, one per replica. Their order cannot change a result.
REPLICATED = ("optimizer.lr", "seed")


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config as one dict with dotted keys; lists stay values."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def run_id(config: Mapping[str, Any]) -> str:
    """The identity of a run: 12 hex digits over the resolved config without what cannot change its result.

    Numbers count by value (`1` is `1.0`, `1e-3` is `0.001`), and a single learning rate or seed is a list of one. A key
    whose value is null or false counts as absent, so that a later version may add it. A dataset that is read from
    files counts by its content. ValueError for what is no number, string, bool, null, list or mapping, or not finite.
    """
    flat = present(flatten(config))
    canonical = {key: canonical_value(value, key) for key, value in flat.items() if not is_volatile(key)}
    if DATA_DIGEST in canonical:
        for key in DATA_PATHS:
            canonical.pop(key, None)
    for key in REPLICATED:
        if key in canonical:
            canonical[key] = sorted(as_list(canonical[key]), key=repr)
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def present(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and their values, less those that are null or false, which count as absent."""
    return {key: value for key, value in flat.items() if value is not None and value is not False}


def as_list(value: Any) -> list:
    """`value` as a list, for keys that take one value or several."""
    return list(value) if isinstance(value, list | tuple) else [value]


def hyperparameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted keys that can change a result, less the classes of parts that have a name, which says as much."""
    flat = flatten(config)
    named = {f"{key.removesuffix('.name')}._target_" for key in flat if key.endswith(".name")}
    return {key: value for key, value in flat.items() if not is_volatile(key) and key not in named}


@functools.lru_cache(maxsize=4096)  # it is asked for each key of each run of a report
def is_volatile(key: str) -> bool:
    """Whether the value of this dotted key cannot change a result."""
    return any(key == volatile or key.startswith(f"{volatile}.") for volatile in VOLATILE)


def canonical_value(value: Any, key: str) -> Any:
    """The value of a key as an identity has it: numbers that are equal become the same one."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return int(value) if value.is_integer() else value
    if isinstance(value, list | tuple):
        return [canonical_value(item, key) for item in value]
    if isinstance(value, Mapping):
        return {name: canonical_value(item, f"{key}.{name}") for name, item in value.items()}
    raise ValueError(f"{key}={value!r} cannot be part of a run's identity: give a finite number or a string")


def replicas_of(config: Mapping[str, Any]) -> list[tuple[float, int]]:
    """The (learning rate, seed) of each replica, in the order of a record's rows."""
    rates, seeds = as_list(config["optimizer"].get("lr")), as_list(config["seed"])
    for lr in rates:
        if type(lr) not in (int, float) or not 1e-30 <= lr <= 1e30:  # float32 overflows, and so do axes of figures
            raise ValueError(f"optimizer.lr={lr!r} must be a number in [1e-30, 1e+30], or a list of such")
    for seed in seeds:
        if type(seed) is not int or not 0 <= seed < 2**31:
            raise ValueError(f"seed={seed!r} must be a whole number from 0 to 2^31 - 1")
    for key, values in (("optimizer.lr", rates), ("seed", seeds)):
        if not values or len(set(values)) < len(values):
            raise ValueError(f"{key}={values} must be a number, or a list of different ones, one for each replica")
    return [(float(lr), seed) for seed in seeds for lr in rates]
