"""Measures what trained mixers compute, as the Parallax paper does: rows, its figures, its table of stable ranks."""

import argparse
import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from mixerlab.analysis.inside import QUANTILES, measure, score_maps
from mixerlab.config.project import ConfigDir
from mixerlab.loading import Loaded, checked_folder, load, splits_of
from mixerlab.records.atomic import replace_file
from mixerlab.records.files import check_writable, read_config, read_metrics, snapshot, weights_file, weights_files
from mixerlab.sweeps.figures import inside as figures
from mixerlab.sweeps.figures.sheet import FORMATS, save
from mixerlab.sweeps.tables.cells import best_per_cell
from mixerlab.sweeps.tables.collect import collect
from mixerlab.sweeps.tables.columns import keys_of, shared, short_names
from mixerlab.sweeps.tables.notes import notes_of
from mixerlab.sweeps.tables.stable_ranks import stable_ranks
from mixerlab.sweeps.tables.swept import spread_out

log = logging.getLogger(__name__)

ROWS = 16  # of a task's test rows, which are measured
FIGURES = {
    "correction": (figures.by_layer, figures.CORRECTION, "The correction of softmax attention"),
    "scores": (figures.by_layer, figures.SCORES, "The weights of the values"),
    "training": (figures.over_training, figures.ACTIVATIONS, "Activations during training"),
}


def analyse(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    rows: int = ROWS,
    device: str | torch.device = "cpu",
    formats: Sequence[str] = ("png",),
    config_dir: ConfigDir = None,
) -> Path:
    """Measures runs that kept their weights, side by side, on their first test rows; returns the folder `out`.

    Of several runs those without official weights are left out; figures of an earlier analysis go.

    The seeds at the best learning rate, as in tables: runs that differ in rates and seeds only join. Their weights are
    those of the reported epoch and of `trainer.snapshots`. `measures.csv` has a row for each replica, moment, layer and
    measure (`analysis.inside`); score maps are of the first and the last layer, two heads of each.

    Args:
        runs: their folders, `results/runs/<run_id>`.
        out: by default `inside`, beside the folder `runs` of the first one.
        formats: of the figures; none: there are no figures.

    Raises:
        ValueError: as `mixerlab.load`; `attention_parts` of wrong shapes; nothing to measure, as of an `nn.GRU`.
    """
    if rows < 1:
        raise ValueError(f"rows={rows} must be at least 1")
    by_id = {folder.name: folder for folder in map(checked_folder, runs)}  # given twice, it would be two seeds
    kept = [folder for folder in by_id.values() if any(".official." in path.name for path in weights_files(folder))]
    folders = kept or list(by_id.values())  # without any, `load` says how to keep them
    if left_out := [name for name, folder in by_id.items() if folder not in folders]:
        told = "left out, as they kept no official weights (trainer.keep_weights=official force=true keeps them): %s"
        log.warning(told, ", ".join(left_out))
    out = folders[0].parents[1] / "inside" if out is None else Path(out)
    frame, found = _runs(folders), []
    variants = _variants(frame)
    maps: dict[tuple[str, str], dict[tuple[str, str, str], list[tuple[str, np.ndarray]]]] = defaultdict(dict)
    for loaded, at, tokens in _moments(folders, frame, rows, device, config_dir):
        row, variant = loaded.row, variants[loaded.row["run_id"]]
        labels = {key: row[key] for key in ("task", "setting", "mixer", "lr", "seed", "run_id", "replica")}
        labels |= {"variant": variant, **at}
        own = maps[row["task"], row["setting"]]
        found += [labels | one for one in measure(loaded.model, tokens)]
        if at["moment"] == "official" and (row["mixer"], variant, "p") not in own:  # of the first seed
            for layer, kind, weights in score_maps(loaded.model, tokens[:1]):
                if layer in (1, len(loaded.model.blocks)):
                    heads = [(f"layer {layer}, head {head}", one) for head, one in enumerate(weights[:2], start=1)]
                    own.setdefault((row["mixer"], variant, kind), []).extend(heads)
    if not found:
        raise ValueError("the mixers have neither linear layers nor attention_parts: there is nothing to measure")
    check_writable(out, "--out")
    for name, end in product((*FIGURES, "score_maps_*"), FORMATS):
        for path in out.glob(f"{name}.{end}"):  # of an earlier analysis, perhaps of other runs
            path.unlink()
    write(pd.DataFrame(found), out, formats)
    for (task, setting), own in maps.items():
        if own and formats:
            figure = figures.score_maps(own, f"Weights of the values: {task}, {setting}")
            save(figure, out / f"score_maps_{task}_{setting}", formats)
    return out


def write(frame: pd.DataFrame, out: Path, formats: Sequence[str] = ("png",)) -> None:
    """Writes `measures.csv`, the table of stable ranks and the figures but for the score maps into a folder."""
    frame = frame.reindex(columns=dict.fromkeys([*frame, *QUANTILES]))  # weights alone have no quantiles
    replace_file(out / "measures.csv", frame.to_csv(index=False, float_format="%.5g", lineterminator="\n"))
    replace_file(out / "stable_ranks.md", stable_ranks(figures.final(frame)))
    for name, (draw, panels, title) in FIGURES.items() if formats else ():
        if (figure := draw(frame, panels, title)) is not None:
            save(figure, out / name, formats)


def _runs(folders: Sequence[Path]) -> pd.DataFrame:
    """A row for each replica, with its `column` (`sweeps.tables.columns`); logs what else differs."""
    configs = {folder.name: config for folder in folders if (config := read_config(folder)) is not None}
    first, *others = dict.fromkeys(folder.parents[1] for folder in folders)
    frame = spread_out(collect(first, configs, more=others))
    for note in notes_of(frame):
        log.warning(note)
    return frame


def _variants(frame: pd.DataFrame) -> dict[str, str]:
    """What tells each run, by its id, from others of its mixer on its task: `adamw, cosine`."""
    columns = dict(zip(frame["run_id"], frame["column"], strict=True))
    common, short = shared(columns.values()), short_names(keys_of(columns.values()))
    return {
        run_id: ", ".join(
            value if key.endswith(".name") else f"{short[key]}={value}" for key, value in column.without(common).values
        )
        for run_id, column in columns.items()
    }


def _moments(
    folders: Sequence[Path], frame: pd.DataFrame, rows: int, device: str | torch.device, config_dir: ConfigDir
) -> Iterator[tuple[Loaded, dict[str, Any], Tensor]]:
    """Each model, whose weights it has and after how many `epochs` and, of a text, `tokens`, and the test rows.

    These are int64 `[rows, T]`.
    """
    best = {replica for cell in best_per_cell(frame)["replicas"] for replica in cell}
    read: dict[str, Tensor] = {}  # by task: runs on one task have the same rows
    for folder in folders:
        loaded = load(folder, config_dir=config_dir)  # which says what is wrong with the run
        if (key := json.dumps(loaded.config["task"], sort_keys=True)) not in read:
            test_tokens = splits_of(loaded.task, loaded.config)["test"][0][:rows]
            read[key] = torch.from_numpy(test_tokens.astype(np.int64)).to(device)
        tokens = None
        if (metrics := read_metrics(folder)) is not None and "token" in metrics:
            tokens = metrics.groupby(metrics["epoch"] + 1)["token"].max()
        snapshots = loaded.config["trainer"].get("snapshots", ())
        for number in sorted(number for run_id, number in best if run_id == folder.name):
            for done in (None, *snapshots):
                if done is None or weights_file(folder, number, snapshot(done)).exists():  # it may have ended before
                    loaded = load(folder, number, epochs=done, config_dir=config_dir)
                    loaded.model.to(device)
                    moment = "official" if done is None else snapshot(done)
                    epochs = loaded.row["official_epoch"] + 1 if done is None else done
                    at: dict[str, Any] = {"moment": moment, "epochs": epochs}
                    yield loaded, at if tokens is None else at | {"tokens": tokens.get(epochs, 0)}, read[key]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="mixerlab analyse", description=__doc__)
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="results/runs/<run_id>, of runs that kept their weights")
    add("--out", help="where to write (default: inside/ in the results folder of the first run)")
    add("--rows", type=int, default=ROWS, help=f"how many of the test rows (default: {ROWS})")
    add("--format", dest="formats", nargs="+", choices=FORMATS, default=["png"], help="of the figures (default: png)")
    add("--config-dir", action="append", help="your own folder of yamls; classes are found beside it")
    options = vars(parser.parse_args(arguments))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    out = analyse(options.pop("runs"), options.pop("out"), device=device, **options)
    print((out / "stable_ranks.md").read_text())
    print(f"rows, tables and figures: {out}")
