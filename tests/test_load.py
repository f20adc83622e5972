"""`mixerlab.load` gives the model that a record scores, or says what to type to get it."""

import shutil
from dataclasses import replace

import pytest
import torch
from command_line import ATTN, TINY, records

import mixerlab
from mixerlab.config.compose import compose
from mixerlab.records.files import read_record, run_folder, weights_file, weights_files, write_record
from mixerlab.tasks.data import load_or_generate
from mixerlab.train import run_state
from mixerlab.training.metrics import batch_scores, means_of
from mixerlab.training.weights import pack, unpack

RATES = "optimizer.lr=[0.001,0.01,0.003]"  # the second is the best


def folder_of(results):
    (name,) = records(results)
    return run_folder(results, name)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    results = tmp_path_factory.mktemp("trained")
    mixerlab.run(*ATTN, RATES, "trainer.keep_weights=both", "trainer.accelerator=cpu", f"results_dir={results}")
    return folder_of(results)


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "results" / "runs" / trained.name)


@torch.no_grad()
def scores_of(model, inputs, targets, batch):
    batches = zip(inputs.split(batch), targets.split(batch), strict=True)
    means = means_of(sum(batch_scores(model(tokens)[None], wanted[None]) for tokens, wanted in batches))
    return means["accuracy"].item(), means["token_accuracy"].item()


@pytest.mark.parametrize("task", ["icr", pytest.param("cmp", marks=pytest.mark.slow)])
def test_a_loaded_model_has_the_score_of_its_record_to_the_last_bit(trained, tmp_path, task):
    """A language model, and an auto-encoder of two mixers, on a CPU in float32: each replica and selection."""
    if task == "cmp":
        kept = ("trainer.keep_weights=both", "trainer.accelerator=cpu", f"results_dir={tmp_path}")
        mixerlab.run("mixer=hybrid", "mixer.layers=[attn,gdn]", "task=cmp", *TINY, *kept)
    folder = trained if task == "icr" else folder_of(tmp_path)
    rows = records(folder.parents[1])[folder.name]["rows"]
    for row in rows:
        for selection in ("official", "clean"):
            loaded = mixerlab.load(folder, row["replica"], selection=selection)
            assert loaded.row == row and not loaded.model.training
            inputs, targets = map(torch.from_numpy, load_or_generate(loaded.task)["test"])
            scores = scores_of(loaded.model, inputs, targets, loaded.config["trainer"]["batch_size"])
            assert scores == (row[f"{selection}_accuracy"], row[f"{selection}_token_accuracy"])
    assert len({row["official_accuracy"] for row in rows}) > 1


def test_without_a_number_it_is_the_best_replica(run):
    rows = records(run.parents[1])[run.name]["rows"]
    assert max(rows, key=lambda row: row["official_accuracy"])["replica"] == 1
    for path in weights_files(run):
        if "replica-1." not in path.name:
            path.unlink()
    before = torch.random.get_rng_state()
    assert mixerlab.load(str(run)).row == rows[1] == mixerlab.load(run, selection="clean").row
    assert torch.equal(torch.random.get_rng_state(), before)


def test_each_selection_has_weights_of_its_own(run):
    for path in weights_files(run):
        if ".clean." in path.name:
            path.unlink()
    assert mixerlab.load(run).row["replica"] == 1
    with pytest.raises(ValueError, match="no clean weights"):
        mixerlab.load(run, selection="clean")
    with pytest.raises(ValueError, match="selection='best': choose official or clean"):
        mixerlab.load(run, 0, selection="best")


def test_a_run_keeps_official_weights(tmp_path, caplog):
    """Whatever is kept, the run and its results are the same; what is finished is not trained for its weights."""
    caplog.set_level("INFO", "mixerlab")
    official = [f"replica-{number}.official.safetensors" for number in (0, 1)]
    none, forced, rows = "trainer.keep_weights=none", "force=true", []
    for overrides, kept in (((none,), []), ((), []), ((forced,), official), ((), official), ((forced, none), [])):
        caplog.clear()
        rows.append(mixerlab.run(*ATTN, f"results_dir={tmp_path}", *overrides).rows)
        assert [path.name for path in weights_files(folder_of(tmp_path))] == kept
        assert ("weights: 2 files, 0.1 MB" in caplog.messages) == (overrides == (forced,))
    assert all(own == rows[0] for own in rows)


def narrow(state, said):
    state["embedding.weight"] = state["embedding.weight"][:, 1:].contiguous()


USELESS = {  # what is changed of what a file of weights holds; None: it holds something else
    "garbage": (None, "it is no weights file of mixerlab"),
    "another replica's": (lambda state, said: said.update(replica=0), "it is of replica 0, not 1"),
    "another training's": (lambda state, said: said.update(rows_sha256="0"), "it is of another training"),
    "incomplete": (lambda state, said: state.pop("norm.weight"), "it has no norm.weight, which"),
    "another shape": (narrow, "its embedding.weight has shape [8, 15], and the model's [8, 16]"),
}


@pytest.mark.parametrize("name", USELESS)
def test_weights_that_are_not_the_records_are_refused(run, name):
    change, reason = USELESS[name]
    path = weights_file(run, 1, "official")
    state, said = unpack(path.read_bytes())
    if change is not None:
        change(state, said)
    path.write_bytes(b"\x80\x04cos\nsystem\n." if change is None else pack(state, said))
    with pytest.raises(ValueError) as error:
        mixerlab.load(run, 1)
    message = str(error.value)
    assert message.startswith(f"{path} cannot be read ({reason}") and "\n" not in message


def test_a_run_starts_from_the_weights_of_another(run):
    """Attention becomes Parallax, whose W_R = 0 leaves what it computes."""
    parallax = "mixer=parallax", "mixer.zero_init_rho=true", "task=icr", *TINY, f"results_dir={run.parents[1]}"
    record = mixerlab.run(*parallax, f"model.start_from={run}", "trainer.snapshots=[0]")
    attention, started = mixerlab.load(run), mixerlab.load(run.with_name(record.run_id), epochs=0)
    tokens = torch.arange(16).remainder(8).expand(2, -1)
    torch.testing.assert_close(started.model(tokens), attention.model(tokens))
    built = mixerlab.build_model(*parallax, f"model.start_from={run}")
    assert torch.equal(built(tokens), started.model(tokens))
    assert not started.model.blocks[0].mixer.r_proj.weight.any()
    assert record.run_id != mixerlab.run(*parallax).run_id


def test_a_run_whose_start_was_trained_again_has_other_code(run):
    started = compose(*ATTN, f"model.start_from={run}", f"results_dir={run.parents[1]}")
    mixerlab.run(config=started)
    assert run_state(started)[1] == "finished"
    start = read_record(run)
    write_record(run, replace(start, rows=[row | {"train_loss": 1.0} for row in start.rows]))
    assert run_state(started)[1] == "finished, code changed"
    shutil.rmtree(run)
    assert run_state(started)[1] == "finished"


def test_what_the_start_shares_begins_in_each_of_its_places(tmp_path):
    options = *ATTN, "optimizer.lr=0.01", f"results_dir={tmp_path}"
    shares = "model.tie_embeddings=true", "model.shared_mixer=true"
    start = run_folder(tmp_path, mixerlab.run(*options, *shares).run_id)
    record = mixerlab.run(*options, f"model.start_from={start}", "trainer.snapshots=[0]")
    sharing, apart = mixerlab.load(start), mixerlab.load(start.with_name(record.run_id), epochs=0)
    tokens = torch.arange(16).remainder(8).expand(2, -1)
    torch.testing.assert_close(apart.model(tokens), sharing.model(tokens))


@pytest.mark.parametrize(
    ("start", "options", "message"),
    [
        ("", ["model.d_model=32"], "its embedding.weight has shape"),
        ("", ["mixer=value_average"], "which the model does not have"),
        ("", ["model.tie_embeddings=true"], "it has head.weight, which the model does not have"),
        ("nowhere", [], "nowhere is no folder of a run"),
    ],
)
def test_weights_that_do_not_fit_are_refused_before_anything_is_written(run, start, options, message):
    before = folder_of(run.parents[1])
    with pytest.raises(ValueError, match=f"model.start_from.*: .*{message}"):
        mixerlab.run(*ATTN, *options, f"model.start_from={start or run}", f"results_dir={run.parents[1]}")
    assert folder_of(run.parents[1]) == before
