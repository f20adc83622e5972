"""A checkpoint that cannot be used costs its epochs."""

import pytest
from tiny_training import checkpoint_of, equal, fit

from mixerlab.training.callbacks import CheckpointFiles

REPLICAS, SETTINGS = [(2e-2, 0)], {"epochs": 3, "checkpoint_every": 0}


def _of_another_shape(path):
    files = CheckpointFiles()
    found = files.load_checkpoint(path)
    name = next(name for name, value in found["state_dict"].items() if value.ndim == 2)
    found["state_dict"][name] = found["state_dict"][name][:, :-1]
    files.save_checkpoint(found, path)


USELESS = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[:5000]),
    "another shape": _of_another_shape,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What a training gives, and the checkpoint that it leaves after its last epoch but one."""
    folder = tmp_path_factory.mktemp("whole")
    result = fit(REPLICAS, folder, **SETTINGS)
    return result, checkpoint_of(REPLICAS, folder).read_bytes()


@pytest.mark.parametrize("name", USELESS)
def test_a_checkpoint_that_is_of_no_use_costs_its_epochs(tmp_path, caplog, whole, name):
    result, content = whole
    path = checkpoint_of(REPLICAS, tmp_path)
    path.write_bytes(content)
    USELESS[name](path)
    again = fit(REPLICAS, tmp_path, **SETTINGS)
    assert equal(again, result)
    assert f"{path.name} cannot be restored" in again.notes[0] and again.notes[0] in caplog.text


@pytest.mark.parametrize(
    "other",
    [
        {"accelerator": "gpu"},
        {"code": {"mixer": "before"}},
        {"keep_weights": "none"},
        {"replicas": [(1e-2, 0), (2e-2, 0)]},
    ],
)
def test_a_checkpoint_of_another_training_is_not_continued_and_the_log_says_so(tmp_path, caplog, whole, other):
    """Its rows are those of its replicas in their order, by their code, in the order that its device draws."""
    _, content = whole
    replicas = [(2e-2, 0), (1e-2, 0)] if "replicas" in other else REPLICAS
    path = checkpoint_of(**{"replicas": replicas, "folder": tmp_path, **other})
    path.write_bytes(content)
    (note,) = fit(replicas, tmp_path, **SETTINGS).notes
    assert path.name in note and "training starts over" in note and note in caplog.text
    assert path.read_bytes() == content
