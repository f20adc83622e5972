"""mad-lab's own rows obey our rules, and our rows have the same distribution as mad-lab's."""

from dataclasses import replace

import pytest
from golden_data import GOLDEN, every_golden
from row_statistics import MAX_Z, row_statistics, z_scores

from mixerlab.tasks.base import split_rng
from mixerlab.tasks.data import dataset_folder

NUM_ROWS = 1500  # of ours: so many that mad-lab's 256 rows dominate the sampling error


def golden_z(golden, split, **changes):
    """z of every statistic between mad-lab's rows and ours, which may come from a task with these changes."""
    task = golden.task
    rows = replace(task, **changes).generate(NUM_ROWS, split_rng(7, split), split)
    return z_scores(row_statistics(task, *rows), row_statistics(task, *golden.arrays(split)))


@every_golden
@pytest.mark.parametrize("split", ["train", "test"])
def test_rules_accept_mad_labs_rows(golden, split):
    golden.task.check(*golden.arrays(split), split)


@every_golden
@pytest.mark.parametrize("split", ["train", "test"])
def test_distribution_is_mad_labs(golden, split):
    unlike = {name: z for name, z in golden_z(golden, split).items() if abs(z) > MAX_Z}
    assert not unlike


def test_another_distribution_is_noticed():
    assert golden_z(GOLDEN["ncr_v32_n16_l128_f0.2"], "test", frac_noise=0.24)["noise slots"] > MAX_Z


@every_golden
def test_folder_is_named_as_mad_lab_names_it(golden):
    assert dataset_folder(golden.task) == golden.manifest["madlab_dir"]
