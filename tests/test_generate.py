"""`mixerlab generate`: a trained model reads its test rows token by token, and scores as its record says."""

import pytest
from command_line import TINY, records

import mixerlab
from mixerlab.generate import generate, main
from mixerlab.records.files import run_folder

KEPT = ("trainer.keep_weights=official", "trainer.accelerator=cpu")


def trained(results, *overrides):
    """The folder of a run that has kept its weights."""
    record = mixerlab.run(*TINY, *overrides, *KEPT, f"results_dir={results}")
    return run_folder(results, record.run_id)


@pytest.mark.parametrize(
    "layers", ["attn,gdn", *(pytest.param(x, marks=pytest.mark.slow) for x in ("parallax,mamba", "mesa,attn"))]
)
def test_it_scores_as_the_record_says(layers, tmp_path, capsys):
    hybrid = "mixer=hybrid", f"mixer.layers=[{layers}]"
    folder = trained(tmp_path, "task=icr", *hybrid, "optimizer.lr=0.01", "task.num_test_examples=72")
    (row,) = records(tmp_path)[folder.name]["rows"]
    exact, lowered = generate(folder), generate(folder, bf16=True)
    assert exact["accuracy"] == row["official_accuracy"] and exact["token_accuracy"] == row["official_token_accuracy"]
    assert exact["loss"] == pytest.approx(row["official_loss"], rel=1e-5)
    assert lowered["loss"] != exact["loss"] and abs(lowered["token_accuracy"] - exact["token_accuracy"]) < 0.005
    main([str(folder)])
    assert capsys.readouterr().out.startswith(f"accuracy {exact['accuracy']:.4f}  token_accuracy")


@pytest.mark.slow
@pytest.mark.parametrize("task", ["fcr", "mem", "mqar", "ncr", "sc", "state_tracking"])
def test_every_task_but_compression(task, tmp_path):
    own = [override for override in TINY if not override.startswith(("task.vocab_size", "task.seq_len"))]
    record = mixerlab.run(*own, f"task={task}", "mixer=gdn", *KEPT, f"results_dir={tmp_path}")
    folder = run_folder(tmp_path, record.run_id)
    for row in record.rows:
        assert generate(folder, row["replica"])["accuracy"] == row["official_accuracy"]


def test_an_auto_encoder_is_refused(tmp_path):
    folder = trained(tmp_path, "task=cmp", "mixer=attn", "optimizer.lr=0.01")
    with pytest.raises(SystemExit, match="task=cmp: an auto-encoder"):
        main([str(folder)])
