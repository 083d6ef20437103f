"""The command line, as a user calls it; `memory`: its bytes against those that the optimizers really hold."""

import json
import math
import re
import sys

import numpy as np
import paddle
import paddlenlp.transformers as nlp
import pytest
import tables
from paddlenlp.transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM, LlamaModel
from state_bytes import ROWS, bytes_of

import paddle_ldopt as ldopt
from paddle_ldopt.tools.cli import load_model, main
from paddle_ldopt.tools.memory import estimate

DECAY = "--layerwise_lr_decay"
BERT = "BertForSequenceClassification"
SIZES = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A folder with the configuration of a narrow BERT of 12 blocks."""
    folder = tmp_path_factory.mktemp("small")
    BertConfig(num_hidden_layers=12, **SIZES).save_pretrained(str(folder))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": [BERT]}))
    return str(folder)


def test_table_plot_and_json(small, tmp_path, capsys):
    picture = tmp_path / "rates.png"
    assert main(["layers", "--model", small, DECAY, "0.5", "--learning_rate", "1e-3", "--plot", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "block 11" in shown and "0.0005" in shown and "…" not in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    options = [DECAY, "0.5", "--layerwise_convention", "electra", "--layerwise_head_ratio", "2"]
    assert main(["layers", "--model", BERT, *options, "--layerwise_freeze_below", "0.2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["towers"] == {"bert.encoder.layers": 12}
    assert [row["ratio"][0] for row in answer["layers"]] == [0.0] * 12 + [0.25, 2.0]
    assert sum(row["elements"] for row in answer["layers"]) == 109_494_530


def test_the_layers_are_measured(small, tmp_path, capsys):
    np.savez(tmp_path / "batch.npz", input_ids=np.ones([1, 4], "int64"))
    for more, source, says in (
        (["--model", small], "measured", ""),
        (["--model", small, "--example", str(tmp_path / "batch.npz")], "measured", ""),
        (["--model", "LlamaForCausalLM"], "by names", "The model is too large to run it without `--example`"),
    ):
        assert main(["layers", *more, "--json"]) == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["source"] == source and says in shown.err
    assert main(["layers", "--model", small, "--example", str(tmp_path / "none.npz")]) == 2


def test_towers_and_multipliers(small, capsys):
    options = ["--layerwise_towers", '{"bert": {"layerwise_decay": 0.5, "scale": 0.1}}']
    options += ["--layerwise_multipliers", '{"classifier": 10}']
    assert main(["layers", "--model", small, *options, "--json"]) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    assert [row["ratio"][1] for row in layers[11:]] == pytest.approx([0.025, 0.05, 10.0])
    assert layers[-1]["multiplier"] == [1.0, 10.0]


def test_rules(small, capsys):
    assert main(["layers", "--model", small, DECAY, "0.5", "--layerwise_rules", '{"pooler": 12}', "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["layers"]
    assert [(row["label"], row["ratio"][0]) for row in rows[-2:]] == [("head", 1.0), ("block 11", 0.5)]
    assert main(["layers", "--model", small, "--layerwise_rules", '["pooler"]']) == 2
    assert "`--layerwise_rules` must be a JSON object such as" in capsys.readouterr().err


def test_a_local_folder_needs_its_config_only(tmp_path, capsys):
    BertConfig(num_hidden_layers=3, **SIZES).save_pretrained(str(tmp_path))  # of no model, so it names none
    assert type(load_model(str(tmp_path))).__name__ == "BertModel"
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": [BERT]}))
    assert type(load_model(str(tmp_path))).__name__ == BERT
    assert main(["layers", "--model", str(tmp_path), DECAY, "0.9", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["towers"] == {"bert.encoder.layers": 3}
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    with pytest.raises(ValueError, match="`--model` must be a PaddleNLP class such as.*Received: --model="):
        load_model(str(tmp_path))


def test_a_model_that_needs_memory_to_be_built(monkeypatch):
    class SetsWeights(nlp.BertModel):
        def __init__(self, config):
            super().__init__(config)
            self.pooler.dense.bias.set_value(self.pooler.dense.bias.numpy() + 1.0)

    class Config(BertConfig):
        def __init__(self):
            super().__init__(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)

    SetsWeights.config_class = Config
    monkeypatch.setattr(nlp, "SetsWeights", SetsWeights, raising=False)
    assert float(load_model("SetsWeights").pooler.dense.bias.min()) == 1.0


def test_a_model_without_paddlenlp(monkeypatch):
    monkeypatch.setitem(sys.modules, "paddlenlp.transformers", None)
    with pytest.raises(ValueError, match="with PaddleNLP installed.*Received: --model='BertModel'"):
        load_model("BertModel")


COSINE = ["schedule", "--lr_scheduler_type", "cosine", "--max_steps", "1000", "--warmup_steps", "100"]
COSINE += ["--learning_rate", "5e-5"]


def marks(text):
    """Return the columns of the plot that have a star, by row from the top."""
    rows = [line.split("|", 1)[1] for line in text.splitlines() if "|" in line]
    return [[i for i, mark in enumerate(row) if mark == "*"] for row in rows]


def test_it_plots_in_the_terminal(capsys):
    assert main(COSINE) == 0
    out = capsys.readouterr().out
    assert "5e-05 |" in out and "0..999" in out
    rows = marks(out)
    assert rows[-1][0] == 0 and rows[-1][-1] == 71, "it starts and ends at 0"
    assert all(6 <= column <= 20 for column in rows[0]), "the peak is at step 100 of 1000"
    assert {column for row in rows for column in row} == set(range(72))


@pytest.mark.parametrize("steps, last", [("1", "0..0"), ("2", "0..1"), ("1e11", "0..99999999999")])
def test_runs_of_any_length_fill_the_plot(steps, last, capsys):
    assert main([*COSINE, "--max_steps", steps, "--warmup_steps", "0"]) == 0
    out = capsys.readouterr().out
    assert f" {last}\n" in out and {column for row in marks(out) for column in row} == set(range(72))


def test_layers_are_drawn_below_the_head(capsys):
    assert main([*COSINE, DECAY, "0.5", "--layers", "3"]) == 0
    out = capsys.readouterr().out
    assert "* head   . embeddings and all between" in out and ".." in out


def test_kwargs_reach_the_schedule(capsys):
    restarts = ["schedule", "--lr_scheduler_type", "cosine_with_restarts", "--max_steps", "300", "--learning_rate", "1"]
    assert main([*restarts, "--lr_scheduler_kwargs", '{"num_cycles": 3}']) == 0
    assert len([c for c in marks(capsys.readouterr().out)[0] if c in (0, 24, 48)]) == 3


@pytest.mark.parametrize(
    "options, says",
    [
        (["--lr", "1"], "--lr is not a known argument; the nearest is '--learning_rate'"),
        (["--decay", "1"], "--decay is not a known argument; the nearest is '--layerwise_lr_decay'"),
        (["--warmpu", "1"], "--warmpu is not a known argument; the nearest is '--warmup_steps'"),
        (["--lr_scheduler_type", "reduce_lr_on_plateau"], "invalid choice: 'reduce_lr_on_plateau'"),
        (["--max_steps", "0.5"], "--max_steps: must be a number of steps such as 1000 or 1e5. Received: 0.5"),
    ],
)
def test_errors_of_the_parser(options, says, capsys):
    with pytest.raises(SystemExit):
        main([*COSINE, *options])
    assert says in capsys.readouterr().err


def test_it_draws_a_file(tmp_path, capsys):
    picture = tmp_path / "schedule.png"
    assert main([*COSINE, "--plot", str(picture), DECAY, "0.8", "--layers", "12"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr()
    assert shown.out == "" and str(picture) in shown.err


TOWERS = ["layers", "--model", "{small}", "--layerwise_towers"]
MEMORY = ["memory", "--model", "{small}", "--optim"]


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["layers", "--model", "NoSuchModel"], "Received: --model='NoSuchModel'"),
        (["layers", "--model", "BertTokenizer"], "Received: --model='BertTokenizer'"),
        (["layers", "--model", "{folder}"], "Received: --model='{folder}'"),
        (["layers", "--model", "{small}", DECAY, "1.5"], "must be in (0, 1]. Received: --layerwise_lr_decay=1.5"),
        (["layers", "--model", "{small}", "--learning_rate", "-1"], "Received: learning_rate=-1.0"),
        ([*TOWERS, "[]"], """`--layerwise_towers` must be a JSON object such as '{{"vision_model": 0.65}}'"""),
        ([*TOWERS, '{{"vision": 0.9}}', DECAY, "0.5"], "blocks in a part of this name"),
        (["layers", "--model", "{small}", "--plot", "rates.txt"], "Received: --plot='rates.txt'"),
        ([*COSINE, "--warmup_steps", "-1"], "Received: num_warmup_steps=-1"),
        ([*COSINE, "--lr_scheduler_kwargs", "{{min_lr}}"], "Received: --lr_scheduler_kwargs='{{min_lr}}'"),
        ([*COSINE, "--lr_scheduler_kwargs", '{{"no_such": 1}}'], "no_such"),
        ([*COSINE, DECAY, "0.8"], "Received: --layerwise_lr_decay=0.8, --layers=None"),
        ([*COSINE, "--layers", "12"], "Received: --layers=12"),
        ([*COSINE, "--plot", "out.txt"], "Received: --plot='out.txt'"),
        ([*MEMORY, "came,name=lamb"], "Received: --optim='came,name=lamb'"),
        ([*MEMORY, "came,beta1"], "Received: beta1=True"),
        ([*MEMORY, "adam"], "the nearest is 'adamwdl'"),
    ],
)
def test_errors(arguments, says, small, tmp_path, capsys):
    arguments, says = [a.format(folder=tmp_path, small=small) for a in arguments], says.format(folder=tmp_path)
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert "error: " in shown.err and says in shown.err and not shown.out


HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TINY = LlamaConfig(num_hidden_layers=4, hidden_size=64, intermediate_size=96, vocab_size=100, **HEADS)
STATES = {
    **ROWS,
    "muon": ({}, ""),
    **{f"came, beta1 {beta}": ({"learning_rate": 1e-3, "beta1": beta}, "") for beta in (0.0, None)},
}


def shapes_of(model):
    return {name: tuple(param.shape) for name, param in model.named_parameters()}


def bert():
    config = BertConfig(num_hidden_layers=2, hidden_size=16, num_attention_heads=2, intermediate_size=24, vocab_size=50)
    return shapes_of(BertForSequenceClassification(config))


def llama():
    return shapes_of(LlamaForCausalLM(TINY))


@pytest.mark.representatives
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("build", [bert, llama])
@pytest.mark.parametrize("name", STATES)
def test_state_and_masters_equal_the_bytes_of_real_optimizers(name, build, dtype):
    shapes, (arguments, _) = build(), STATES[name]
    zero = paddle.nn.initializer.Constant(0.0)
    params = [paddle.create_parameter(list(shape), dtype, default_initializer=zero) for shape in shapes.values()]
    for param in params:
        param.grad = paddle.full(param.shape, 1e-3, dtype)
    names = {"name_dict": {param.name: structured for param, structured in zip(params, shapes)}}
    if name == "muon":
        layers = ldopt.LayerMap.from_names(list(shapes))
        layers.name_dict.update(names["name_dict"])
        names = {"layers": layers}
    masters = {"multi_precision": True} if dtype != "float32" else {}
    cls = ldopt.optimizer_class(name.split(",")[0])
    optimizer = cls(parameters=params, **names, **masters, **arguments)
    optimizer.step()
    options = {key: value for key, value in arguments.items() if key != "learning_rate"}
    answer = estimate(shapes, name.split(",")[0], dtype, **options)
    masters = optimizer.state_dict().get("master_weights", {}).values()
    size = sum(map(math.prod, shapes.values()))
    want = dict.fromkeys(["parameters", "gradients"], size * (4 if dtype == "float32" else 2))
    want.update(masters=sum(master.size * 4 for master in masters), state=bytes_of(optimizer))
    assert answer == {**want, "total": sum(want.values())}


def test_unknown_options_and_types():
    with pytest.raises(ValueError, match="`lamb`: 'compression' is not a known option;"):
        estimate({"a": [2]}, "lamb", compression=True)
    with pytest.raises(ValueError, match="`lamb`: 'dtype' is not a known option"):
        estimate({"a": [2]}, "lamb", dtype="int8")
    with pytest.raises(ValueError, match="`dtype` must be one of .*Received: dtype='int8'"):
        estimate({"a": [2]}, "lamb", "int8")


def memory(capsys, *options):
    assert main(["memory", *options]) == 0
    return capsys.readouterr().out


def test_the_command_shows_optimizers_side_by_side(capsys):
    out = memory(capsys, "--model", "LlamaForCausalLM", "--optim", "came", "lamb")
    assert "6.74 B parameters" in out
    assert [line.split()[-2:] for line in out.splitlines() if line.startswith(" state")] == [["25.1", "50.2"]]


def test_memory_as_json(tmp_path, capsys):
    assert estimate({"a": [2]}, "lamb", multi_precision=False, epsilon=1e-8)["masters"] == 0
    TINY.save_pretrained(str(tmp_path))
    options = ["--model", str(tmp_path), "--optim", "came,beta1=0", "came,compression,multi_precision=false"]
    answer = json.loads(memory(capsys, *options, "--json", "--dtype", "float16"))
    shapes = shapes_of(LlamaModel(TINY))
    assert answer["size"] == sum(map(math.prod, shapes.values()))
    assert answer["bytes"] == {
        "came,beta1=0": estimate(shapes, "came", "float16", beta1=0.0),
        options[-1]: estimate(shapes, "came", "float16", multi_precision=False, compression=True),
    }


@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_declarations(page):
    text = page.read_text(encoding="utf-8")
    assert tables.filled(text) == text, "run docs/tables.py"


def test_every_table_has_a_place_in_a_page():
    text = "".join(page.read_text(encoding="utf-8") for page in tables.PAGES)
    assert sorted(re.findall(r"(?:<!--|\.\.) table: (.+?)(?: -->)?\n", text)) == sorted(tables.tables())
