"""Which run a config describes: its identity, `run_id`, and its replicas."""

import functools
import hashlib
import json
import math
import re
from collections.abc import Mapping
from typing import Any

# Keys that cannot change the result. Those of `task` are labels and the lists that they choose from: what
# they resolve to stands beside them.
VOLATILE = (
    "results_dir",
    "force",
    "dry_run",
    "wait",
    "experiment",
    "sweep",
    "trainer.progress",
    "trainer.checkpoint_every",
    "trainer.cuda_graph",
    "trainer.keep_weights",
    "trainer.replicas",
    "trainer.compile",
    "logger",
    "task.setting",
    "task.baseline",
    "task.changes",
    "task.levels",
    "task.allow_shared_rows",
)
# Keys that came later, and what the code did before each of them: a run that has this value is the run that it was, and
# records made before are still found. A key stays here for good; one whose default changes keeps its first value. Those
# of `mixer` and `optimizer` are keys of these classes: another one may have a key of this name, and another default.
IMPLIED = {
    "model.linear_std": None,
    "model.autoencoder_redraw_all": False,
    "model.may_see_future": False,
    "mixer.bias": False,
    "mixer.expand_v": 1,
    "mixer.zero_dt_bias": False,
    "optimizer.filters": "adam",
    "optimizer.decoder": "muon",
    "optimizer.head": "adam",
    "optimizer.decayed": "matrices",
    "optimizer.update_scale": "original",
    "optimizer.bf16_matrices": False,
    "trainer.stop_above": None,
    "task.test_seq_len": None,
}
_IMPLYING = {
    "mixers.attn.Attention",
    "mixers.parallax.Parallax",
    "mixers.gdn.GatedDeltaNet",
    "mixers.mamba.Mamba",
    "training.optimizers.Muon",
    "training.optimizers.AdamW",
}
# The keys of a hybrid's layers, which imply what those of the mixer do.
_OF_LAYER = re.compile(r"^(mixer\.options\.\d+)\.")
# The hash of a cached dataset's content stands in the identity for the folder that it was read from.
DATA_PATH, DATA_DIGEST = "task.data_dir", "task.data_sha256"
# Keys that take one value or a list of them, one per replica. Their order cannot change a result.
REPLICATED = ("optimizer.lr", "seed")
# Of learning rates: beyond them float32 overflows in a step, and so do the axes of figures.
LEAST_RATE, LARGEST_RATE = 1e-30, 1e30


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

    Numbers count by value (`1` is `1.0`, `1e-3` is `0.001`), a single learning rate or seed is a list of one, and a
    `_target_` counts without the prefix `mixerlab.`, which records of earlier versions do not have. A key at its
    `IMPLIED` value counts as absent. A dataset that is read from a folder counts by its content.

    Raises:
        ValueError: a value that is no number, string, bool, null, list or mapping, or is not finite.
    """
    flat = flatten(config).items()
    canonical = without_implied({key: canonical_value(value, key) for key, value in flat if not is_volatile(key)})
    if DATA_DIGEST in canonical:
        canonical.pop(DATA_PATH, None)
    for key, value in canonical.items():
        if key.endswith("_target_") and isinstance(value, str):
            canonical[key] = value.removeprefix("mixerlab.")
    for key in REPLICATED:
        if key in canonical:
            canonical[key] = sorted(as_list(canonical[key]), key=repr)
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def without_implied(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and their values, less those at the value that older records imply (`IMPLIED`).

    A mixer or optimizer whose class is not among the keys, as in a record's `hparams`, is one of ours.
    """
    return {key: value for key, value in flat.items() if not _is_implied(key, value, flat)}


def _is_implied(key: str, value: Any, flat: Mapping[str, Any]) -> bool:
    layer = _OF_LAYER.match(key)
    group = layer[1] if layer else key.partition(".")[0]
    target = flat.get(f"{group}._target_") if group.startswith(("mixer", "optimizer")) else None
    if target is not None and str(target).removeprefix("mixerlab.") not in _IMPLYING:
        return False
    key = _OF_LAYER.sub("mixer.", key)
    return key in IMPLIED and _same(value, IMPLIED[key])


def _same(value: Any, implied: Any) -> bool:
    return value == implied and isinstance(value, bool) == isinstance(implied, bool)


def as_list(value: Any) -> list:
    """`value` as a list, for keys that take one value or several."""
    return list(value) if isinstance(value, list | tuple) else [value]


@functools.lru_cache(maxsize=4096)  # it is asked for each key of each replica of a report
def is_volatile(key: str) -> bool:
    """Whether the value of this dotted key cannot change a result."""
    return any(key == volatile or key.startswith(f"{volatile}.") for volatile in VOLATILE)


def canonical_value(value: Any, key: str) -> Any:
    """The value of a key as an identity has it: numbers that are equal become the same one.

    Raises:
        ValueError: no number, string, bool, null, list or mapping, or not finite.
    """
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
    """The (learning rate, seed) of each replica, in the order of a record's rows.

    Raises:
        ValueError: a rate or seed that cannot be, none, or one twice.
    """
    rates, seeds = as_list(config["optimizer"]["lr"]), as_list(config["seed"])
    for lr in rates:
        if type(lr) not in (int, float) or not 0 < lr < math.inf:
            raise ValueError(f"optimizer.lr={lr!r} must be a finite number above 0")
        if not LEAST_RATE <= lr <= LARGEST_RATE:
            raise ValueError(f"optimizer.lr={lr!r} must lie in [{LEAST_RATE:g}, {LARGEST_RATE:g}]")
    for seed in seeds:
        if type(seed) is not int or not 0 <= seed < 2**31:
            raise ValueError(f"seed={seed!r} must be a whole number from 0 to 2^31 - 1")
    for key, values in (("optimizer.lr", rates), ("seed", seeds)):
        if not values:
            raise ValueError(f"{key}=[] names no replica: give a number, or a list of them")
        if twice := [value for number, value in enumerate(values) if value in values[:number]]:
            raise ValueError(f"{key}={values} has {twice[0]} twice: give each value once")
    return [(float(lr), seed) for seed in seeds for lr in rates]
