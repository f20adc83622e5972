"""A constructor that changes what the whole process shares, as public code has it, is refused by a check and a run."""

import random

import numpy as np
import pytest
import torch
from command_line import TINY

import mixerlab
from mixerlab.checks.construction import check_construction
from mixerlab.checks.contract import check_everything
from mixerlab.mixers.attn import Attention
from mixerlab.records.errors import RefusedMixer

_state = torch.get_rng_state()


def forks():
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(42)
        torch.rand(2)


def sets_back():
    state = random.getstate()
    random.seed(1)
    random.setstate(state)


def draws():
    np.random.default_rng(0).random()
    torch.rand(3, generator=torch.Generator().manual_seed(0)), torch.rand(2), np.random.rand(), random.random()  # noqa: NPY002


def seeds_everything():
    import lightning  # here: it imports Triton, which tests of kernels do after they have set how it runs

    lightning.seed_everything(7, verbose=False)


ALLOWED = (forks, sets_back, draws)
REFUSED = {
    "torch": lambda: torch.manual_seed(42),
    "of torch,": lambda: torch.set_rng_state(_state),
    "numpy": lambda: np.random.seed(0),  # noqa: NPY002
    "random": lambda: random.seed(0),
    "torch and numpy and random": seeds_everything,
}


@pytest.mark.parametrize("act", ALLOWED)
def test_what_leaves_the_process_as_it_was_may(act):
    check_construction(lambda: [act(), torch.nn.Identity()][1])


@pytest.mark.parametrize("named", REFUSED)
def test_what_does_not_is_refused_and_undone(named):
    before = torch.get_rng_state()
    with pytest.raises(RefusedMixer, match=named):
        check_construction(lambda: [REFUSED[named](), torch.nn.Identity()][1])
    assert torch.equal(torch.get_rng_state(), before)


class Mine(Attention):
    def __init__(self, **arguments):
        seeds_everything()
        super().__init__(**arguments)


def test_a_check_and_a_run_refuse_it(tmp_path):
    with pytest.raises(RefusedMixer, match="torch and numpy and random"):
        check_everything(lambda: Mine(d_model=32, num_heads=2))
    given = ("mixer=attn", f"mixer._target_={__name__}.Mine", "task=icr", *TINY, f"results_dir={tmp_path}")
    before = torch.get_rng_state()
    with pytest.raises(ValueError, match=r"^mixer=attn: .*torch and numpy and random"):
        mixerlab.run(*given, "seed=[0,1]")
    assert torch.equal(torch.get_rng_state(), before) and not list(tmp_path.iterdir())


class Places(Attention):
    """As layers of transformers, which ask for their place."""

    def __init__(self, layer_idx, num_layers=None, **arguments):
        super().__init__(**arguments)
        self.place = layer_idx, num_layers


class Cached(Attention):
    """Gives every mixer the same projection, as by a cache in a module."""

    shared = None

    def __init__(self, **arguments):
        super().__init__(**arguments)
        Cached.shared = Cached.shared or self.q_proj
        self.q_proj = Cached.shared


def test_a_constructor_gets_its_place_if_it_asks(own):
    _, folder = own("mixer/places", f"name: places\n_target_: {__name__}.Places\n")
    model = mixerlab.build_model("mixer=places", "model.n_layers=3", *TINY, config_dir=folder)
    assert [block.mixer.place for block in model.blocks] == [(0, 3), (1, 3), (2, 3)]
    model = mixerlab.build_model("mixer=places", "+mixer.layer_idx=7", *TINY, config_dir=folder)
    assert [block.mixer.place for block in model.blocks] == [(7, 2), (7, 2)]


def test_blocks_may_share_one_mixer():
    model = mixerlab.build_model("mixer=attn", "model.shared_mixer=true", *TINY)
    assert model.blocks[0].mixer is model.blocks[1].mixer and model.blocks[0].mlp is not model.blocks[1].mlp
    hybrid = ("mixer=hybrid", "mixer.layers=[attn,gdn]", "model.n_layers=4", "model.shared_mixer=true")
    blocks = mixerlab.build_model(*hybrid, *TINY).blocks
    assert [blocks[i].mixer is blocks[j].mixer for i, j in ((0, 2), (1, 3), (0, 1))] == [True, True, False]


def test_what_blocks_share_by_accident_is_refused():
    with pytest.raises(RefusedMixer, match=r"gives every mixer the same q_proj.weight.*model.shared_mixer=true"):
        check_construction(lambda: Cached(d_model=32))
