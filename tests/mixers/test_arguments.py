"""Whether the keys of a mixer's yaml fit its constructor, and their values its annotations."""

from typing import Literal

import pytest

from mixerlab.checks.contract import check_config
from mixerlab.mixers.base import SequenceMixer
from mixerlab.records.errors import RefusedMixer


class Chooses(SequenceMixer):
    def __init__(self, d_model: int, order: Literal[1, 2] = 1, gate: Literal["silu", "gelu"] | None = None):
        super().__init__()


class ChoosesByStrings(SequenceMixer):
    """As with `from __future__ import annotations`."""

    def __init__(self, d_model: "int", order: "Literal[1, 2]" = 1, gate: 'Literal["silu", "gelu"] | None' = None):
        super().__init__()


@pytest.mark.parametrize("chooses", [Chooses, ChoosesByStrings])
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gate": "relu"}, "mixer.gate='relu' must be one of 'silu', 'gelu' or null"),
        ({"gate": None, "order": True}, "mixer.order=True must be one of 1, 2"),
    ],
)
def test_a_value_is_one_of_the_annotated(chooses, given, message):
    config = {"name": "chooses", "_target_": f"{__name__}.{chooses.__name__}", "gate": "silu", "order": 2}
    check_config(config, "chooses")
    with pytest.raises(ValueError, match=message):
        check_config(config | given, "chooses")


def test_the_check_names_the_yaml_that_lacks_an_argument():
    config = {"name": "chooses", "_target_": f"{__name__}.Chooses", "gate": "silu"}
    with pytest.raises(RefusedMixer, match=r"mixer/chooses\.yaml lacks arguments of the constructor: order"):
        check_config(config, "chooses")


class OnlyForTypeCheckers(SequenceMixer):
    def __init__(self, d_model: int, order: "imported_by_nobody.Order" = 1):  # noqa: F821
        super().__init__()


def test_an_annotation_that_cannot_be_evaluated_is_not_checked():
    config = {"name": "only", "_target_": f"{__name__}.OnlyForTypeCheckers", "order": "second"}
    check_config(config, "only")


class WithoutWidth(SequenceMixer):
    def __init__(self, dim: int = 32):
        super().__init__()


def test_a_constructor_must_take_the_width():
    config = {"name": "thin", "_target_": f"{__name__}.WithoutWidth", "dim": 16}
    with pytest.raises(ValueError, match="mixer: WithoutWidth must take d_model, which a run gives it"):
        check_config(config, "thin")
