"""mad-lab's runs and ours side by side: which rows belong together, and when a difference is more than the seeds'."""

from itertools import combinations, product
from statistics import fmean, pstdev

import pandas as pd
import pytest

from mixerlab.results.parity.rows import half_width, is_within, markdown, side_by_side, together
from mixerlab.results.plan import RESULTS

POINT = {"mixer": "attn", "task": "icr", "lr": 5e-4, "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("theirs", "ours", "expected"),
    [
        ([0.50, 0.60, 0.70], [0.55, 0.65, 0.60], True),
        ([0.50, 0.51, 0.52], [0.60, 0.61, 0.62], False),
        ([0.9995, 0.9996, 0.9995], [0.9999, 0.9999, 0.9999], True),  # less than 0.005
        ([0.5, 0.5, 0.5], [0.6, 0.6, 0.6], False),  # no spread at all
        ([0.5], [0.9, 0.8], None),
    ],
)
def test_within_the_spread_of_seeds(theirs, ours, expected):
    assert is_within(theirs, ours) is expected


CELLS = [([0.2, 0.3, 0.7], [0.1, 0.5, 0.4]), ([0.8, 0.7, 0.75], [0.6, 0.72, 0.65]), ([0.1, 0.4, 0.2], [0.1, 0.3, 0.12])]


def test_all_cells_together_are_permutation_tests():
    """Near to what all exchanges of sides within the cells give; a cell without any spread tells nothing."""

    def exact(scale):
        def differences(cell):
            values = [*cell[0], *cell[1]]
            size = scale(values)
            return [2 * (fmean(values) - fmean(values[i] for i in part)) / size for part in combinations(range(6), 3)]

        exchanged = [abs(sum(parts)) for parts in product(*map(differences, CELLS))]
        found = abs(sum(differences(cell)[0] for cell in CELLS))  # the first part is mad-lab's side as it was
        return sum(value >= found - 1e-9 for value in exchanged) / len(exchanged)

    told = together(CELLS)
    assert told.p_of_scaled == pytest.approx(exact(pstdev), abs=0.01)
    assert told.p_of_mean == pytest.approx(exact(lambda _: 1), abs=0.01)
    assert told.mean == pytest.approx(fmean(fmean(ours) - fmean(theirs) for theirs, ours in CELLS))
    assert together([*CELLS, ([0.5] * 3, [0.5] * 3)]) == told == together(CELLS)
    assert together([cell[::-1] for cell in CELLS]).scaled == pytest.approx(-told.scaled)


def test_small_differences_of_one_sign_count_together():
    one, other = ([0.50, 0.52, 0.54], [0.51, 0.53, 0.55]), ([0.51, 0.53, 0.55], [0.50, 0.52, 0.54])
    assert together([one] * 40).p_of_mean < 0.001 < 0.9 < together([one, other] * 20).p_of_mean
    noisy = [0.1, 0.5, 0.9], [0.9, 0.5, 0.1]
    assert together([one] * 40 + [noisy]).p_of_scaled < 0.001 < together([one] * 4 + [noisy] * 4).p_of_mean
    assert together([]) is None


def test_rows_of_the_same_run_stand_together():
    """By what a setting resolves to; a run that one side lacks is in neither."""
    overrides = "experiment=madlab mixer=attn task=icr task.setting=baseline task.num_train_examples=256"
    listed = pd.DataFrame([POINT | {"setting": "baseline", "overrides": overrides}])
    told = {"perplexity": 2.0, "best_epoch": 3, "epochs": 5, "wall_time_s": 9.0, "device": "cpu"}
    theirs = pd.DataFrame([POINT | told | {"setting": "baseline", "seed": s, "accuracy": 0.5 + s / 10} for s in (0, 1)])
    shared = POINT | {"setting": "num_train_examples=256", "status": "finished", "steps": 10, "precision": "float32"}
    ours = pd.DataFrame(
        [shared | {"seed": s, "official_accuracy": 0.4, "official_epoch": 1, "wall_time_s": 4.0} for s in (0, 2)]
    )
    rows = side_by_side(listed, theirs, ours)
    assert rows[["setting", "seed", "theirs", "ours"]].values.tolist() == [["baseline", 0, 0.5, 0.4]]
    assert rows["difference"].item() == pytest.approx(-0.1)
    assert "| attn | icr | baseline | 0.0005 | 0.0 | 0.500" in markdown(rows) and "one seed" in markdown(rows)


def test_the_committed_table_is_that_of_its_rows():
    folder = RESULTS / "parity"
    assert markdown(pd.read_csv(folder / "rows.csv")) == (folder / "rows.md").read_text()


@pytest.mark.parametrize(("measured", "told"), [("test_accuracy", "-0.001 ± 0.004"), ("test_loss", "+0.003 ± 0.006")])
def test_in_float32_the_page_says_what_the_rows_do(measured, told):
    folder = RESULTS / "parity"
    rows = pd.read_csv(folder / "float32.csv")
    by_seed = rows[rows["epoch"].between(2, 11)].groupby(["side", "seed"])[measured].mean()
    ours, theirs = list(by_seed["ours"]), list(by_seed["mad-lab"])
    assert len(ours) == len(theirs) == 8
    assert f"{fmean(ours) - fmean(theirs):+.3f} ± {half_width(ours, theirs):.3f}" == told
    assert told in " ".join((folder / "README.md").read_text().split())
