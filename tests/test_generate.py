"""`mixerlab generate`: a trained model reads its test rows token by token, and scores as its record says."""

import pytest
import torch
from command_line import TINY, records
from every_mixer import MIXERS, Cumulated

import mixerlab
from mixerlab.generate import TokenReader, generate, main
from mixerlab.records.files import run_folder

KEPT = ("trainer.keep_weights=official", "trainer.accelerator=cpu")


def trained(results, *overrides):
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
    capsys.readouterr()
    main([str(folder)])
    said = capsys.readouterr()
    assert said.out.startswith(f"accuracy {exact['accuracy']:.4f}  token_accuracy")
    assert "batches of test rows: 100%" in said.err


def test_an_auto_encoder_is_refused(tmp_path):
    folder = trained(tmp_path, "task=cmp", "mixer=attn", "optimizer.lr=0.01")
    with pytest.raises(ValueError, match="task=cmp: an auto-encoder"):
        main([str(folder)])


def test_an_option_without_effect_is_refused():
    for options, told in (
        (["--seed", "0"], "--seed works only with"),
        (["--prompt", "a", "--bf16"], "--bf16 .* without"),
    ):
        with pytest.raises(ValueError, match=told):
            main(["results/runs/none", *options])


def plain(model, rows):
    states, logits = model.init_state(*rows.shape), []
    for tokens in rows.split(1, dim=1):
        next_logits, states = model.prefill(tokens, states)
        logits.append(next_logits)
    return torch.cat(logits, dim=1)


def test_one_graph_reads_every_batch(monkeypatch):
    """Of a graph that gives the same tensor each time, and reads the state where it was captured."""
    model, results = mixerlab.build_model("mixer=attn", "task=icr", "task.vocab_size=16").eval(), []

    def captured(function, written, example):
        def replay(tokens):
            states = [tensor for state in reader.states for tensor in state.values()]
            assert all(a.data_ptr() == b.data_ptr() for a, b in zip(states, written, strict=True))
            results.append(function(tokens))
            return results[0].copy_(results[-1])

        return replay, None

    monkeypatch.setattr("mixerlab.generate.captured", captured)
    first, second = torch.randint(0, 16, (2, 3, 9))
    with torch.no_grad():
        reader = TokenReader(model, 3, 9)
        reader._capture(first[:, :1])
        for rows in (first, second, first):
            assert torch.equal(reader(rows), plain(model, rows))
    assert len(results) == 3 * 9


def test_a_state_that_grows_is_not_captured():
    model = mixerlab.build_model("task=icr", "task.vocab_size=16", mixer=Cumulated()).eval()
    rows = torch.randint(0, 16, (3, 9))
    reader = TokenReader(model, 3, 9)
    reader._capture(rows[:, :1])
    assert not reader.is_captured
    torch.testing.assert_close(reader(rows), model(rows).detach())


@pytest.mark.gpu
@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("mixer", MIXERS)
def test_the_graph_gives_the_bits_of_plain_steps(mixer, bf16):
    model = mixerlab.build_model(f"mixer={mixer}", "task=icr").eval().cuda()
    first, second = torch.randint(0, 16, (2, 5, 40), device="cuda")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        reader = TokenReader(model, 5, 40)
        assert reader.is_captured
        for rows in (first, second, first):
            assert torch.equal(reader(rows), plain(model, rows))


@pytest.mark.gpu
@pytest.mark.parametrize("mixer", ["attn", "parallax", "gdn", "mamba", "mesa"])
def test_on_a_gpu_it_scores_as_the_record_says(mixer, tmp_path):
    folder = trained(tmp_path, "task=icr", f"mixer={mixer}", "optimizer.lr=0.01", "task.num_test_examples=1280")
    (row,) = records(tmp_path)[folder.name]["rows"]
    expected = row["official_token_accuracy"]
    assert generate(folder, device="cuda")["token_accuracy"] == pytest.approx(expected, abs=1e-6)
    assert generate(folder, device="cuda", bf16=True)["token_accuracy"] == pytest.approx(expected, abs=0.005)
