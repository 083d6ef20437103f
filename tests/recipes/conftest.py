"""What tests of recipes share: very small untrained models, and no file of arguments."""

import contextlib
import os
import sys

import language_model_sft
import paddle
import pytest
from common import pretrained

TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(autouse=True)
def _no_file_of_arguments(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["no such file"])  # next to it the parser looks for a file of arguments


@pytest.fixture(scope="session")
def offline_encoder():
    """The folder of the encoder that needs no hub; where CI runs, it must be there."""
    try:
        return pretrained.minilm_dir()
    except ValueError as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))


@pytest.fixture(scope="session")
def tiny(offline_encoder, tmp_path_factory):
    """A folder with a very small untrained encoder; its vocabulary is the offline encoder's."""
    folder = tmp_path_factory.mktemp("tiny")
    paddle.seed(0)
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        pretrained.load_model("BertForSequenceClassification", 2, TINY).bert.save_pretrained(folder)
        pretrained.load_tokenizer("BertForSequenceClassification").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory):
    """A folder with a very small untrained language model of bytes."""
    folder = tmp_path_factory.mktemp("llama")
    paddle.seed(0)
    with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
        config = {**language_model_sft.SMALL, **TINY}
        pretrained.load_model("LlamaForCausalLM", config=config, task="CausalLM").save_pretrained(folder)
    return str(folder)
