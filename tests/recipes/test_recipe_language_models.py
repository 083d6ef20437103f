"""The recipes of language models: what is to be learnt, what is hidden, scores by token, adapters, large batches."""

import math
import types
from collections import Counter

import jinja2
import language_model_sft
import masked_lm_pretraining
import numpy as np
import paddle
import pytest
from common import fine_tuning, language_data, predictors, rows
from common.language_data import IGNORED, Messages, unigram
from paddlenlp.data import DataCollatorWithPadding
from paddlenlp.transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM
from test_recipe_data import tokenizer_of, write

SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
WORDS = ["alpha", "beta", "gamma", "delta"]
PAIRS = [(f"{a} {b}: ", f"it is {a}") for a in WORDS for b in WORDS]
TALKS = [(("user", a), ("assistant", b)) for a, b in PAIRS]
DEALT = rows.Parts(TALKS[:8], TALKS[8:12], TALKS[12:], "made up")
OFF = ["--report_to", "none", "--disable_tqdm", "True"]


def arguments(recipe, folder, *more):
    line = ["--output_dir", str(folder), "--save_strategy", "no", "--evaluation_strategy", "no", *OFF, *more]
    line.append("--no_load_best_model_at_end")
    return language_model_sft.parse(line, recipe.Arguments)


def talk(prompt, text):
    return ("user", prompt), ("assistant", text)


def test_a_row_has_the_next_token_at_each_of_the_answer():
    data = Messages([talk("ab", "cd"), talk("ab", "cdefg"), talk("abcdefgh", "i"), talk("a", "")], 5)
    assert [bytes(row["input_ids"].tolist()) for row in data] == [b"abcd", b"abcde", b"efghi", b"a"]
    labels = [row["labels"].tolist() for row in data]
    none = [IGNORED]
    assert labels == [none + [*b"cd\n"], none + [*b"cdef"], none * 3 + [*b"i\n"], [*b"\n"]]
    account = "1 of 4 rows cut (25.0%), 2 of 12 answer tokens lost, 1 prompts without their beginning"
    assert data.account("train") == account, "a prompt gives way down to half of the room"
    inputs, padded = language_data.padded(data, 6)
    assert inputs.shape == (4, 6) and (padded[:, 5] == IGNORED).all()


def test_answers_of_all_turns_are_learnt():
    (row,) = Messages([(("system", "s"), ("user", "ab"), ("assistant", "c"), ("user", "d"), ("assistant", "e"))], 20)
    assert bytes(row["input_ids"].tolist()) == b"sabc\nde"
    assert row["labels"].tolist() == [IGNORED, IGNORED, *b"c\n", IGNORED, *b"e\n"]


class Words:
    """A tokenizer whose tokens are the lengths of words."""

    eos_token_id, chat_template, special_tokens_map = 2, None, {"eos_token": "</s>"}

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": [1] * add_special_tokens + [10 + len(word) for word in text.split()]}


def test_rows_of_a_tokenizer():
    (row,) = Messages([talk("a bb", "ccc d")], 6, language_data.by_tokenizer(Words()))
    assert row["input_ids"].tolist() == [1, 11, 12, 13, 11]
    assert row["labels"].tolist() == [IGNORED, IGNORED, 13, 11, 2]


def test_a_chat_template_says_what_stands_around_an_answer():
    source = "{% for m in messages %} <{{ m.role }}> {{ m.content }} {{ eos_token }}{% endfor %}"
    tokenizer = Words()
    tokenizer.chat_template = jinja2.Template(source + "{% if add_generation_prompt %} <assistant>{% endif %}")
    tokens = language_data.by_tokenizer(tokenizer)
    two = talk("a", "bb ccc") + talk("d", "e")
    parts = tokens(two)
    assert [learnt for _, learnt in parts] == [False, True, False, True]
    assert parts[1][0] == [12, 13, 14] and parts[0][0] == [16, 11, 14, 21], "the answer and its end, and what is before"
    messages = [{"role": role, "content": text} for role, text in two]
    whole = tokenizer(tokenizer.chat_template.render(messages=messages, eos_token="</s>"), add_special_tokens=False)
    assert sum((ids for ids, _ in parts), []) == whole["input_ids"]
    assert tokens((("user", "a"),)) == [(parts[0][0], False)], "what a prediction begins with"


def test_unigram():
    assert unigram([0, 0, 1], [0, 2], 3) == pytest.approx(-(math.log(3 / 6) + math.log(1 / 6)) / 2)


def test_perplexity_counts_each_token_the_same_whatever_its_batch(tiny_llama, tmp_path):
    found = []
    for size in ("1", "3"):
        line = ("--model", tiny_llama, "--per_device_eval_batch_size", size, "--max_length", "32")
        args = arguments(language_model_sft, tmp_path / size, *line)
        with paddle.utils.unique_name.guard():
            trainer, baseline = language_model_sft.build(args, DEALT)
            test = trainer.data["test"]
        found.append(trainer.evaluate(test, metric_key_prefix="test"))
        assert args.greater_is_better is False
    losses, right = [], []
    for row in test:
        logits = trainer.model(paddle.to_tensor(row["input_ids"][None]))[0].numpy().astype("float64")
        logits = (logits if logits.ndim == 2 else logits[0])[row["labels"] != IGNORED]
        labels = row["labels"][row["labels"] != IGNORED]
        losses += (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]).tolist()
        right += (logits.argmax(1) == labels).tolist()
    for metrics in found:
        assert metrics["test_perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-5)
        assert metrics["test_accuracy"] == pytest.approx(np.mean(right))
    train, tested = (np.concatenate([[*t.encode(), 10] for _, t in rows]) for rows in (PAIRS[:8], PAIRS[12:]))
    counts = np.bincount(train, minlength=256) + 1.0
    assert baseline == pytest.approx(math.exp(-np.log(counts / counts.sum())[tested].mean()))


def test_adapters_alone_are_trained(tiny_llama, tmp_path):
    line = ["--model", tiny_llama, "--lora_rank", "2", "--max_steps", "3"]
    args = arguments(language_model_sft, tmp_path, *line)
    with paddle.utils.unique_name.guard():
        trainer, *_ = language_model_sft.build(args, DEALT)
        before = {name: value.numpy() for name, value in trainer.model.named_parameters()}
        trainer.train()
    rates = fine_tuning.rates_of(trainer.layer_map, args)
    assert rates.startswith("peak rates: top block ") and "head" not in rates and "embeddings" not in rates
    moved = {n for n, value in trainer.model.named_parameters() if not np.array_equal(value.numpy(), before[n])}
    adapters = {name for name in before if "lora_" in name}
    assert len(adapters) == 2 * 7 * SHAPE["num_hidden_layers"]
    assert moved and moved <= adapters and any("lora_B" in name for name in moved)
    args.model = language_model_sft.Arguments.model
    with pytest.raises(ValueError, match="need a trained model.*Received: model='LlamaForCausalLM'"):
        language_model_sft.build(args, DEALT)


@pytest.mark.slow
def test_a_run_with_adapters_is_resumed_with_the_same_weights(tiny_llama, tmp_path):
    data = write(tmp_path / "rows.jsonl", PAIRS, ("source", "target"))
    line = ["--data", str(data), "--model", tiny_llama, *OFF]
    settings = "--lora_rank 2 --max_length 20 --per_device_train_batch_size 4 --save_strategy steps --save_steps 2"
    line += [*settings.split(), "--save_total_limit", "2", "--evaluation_strategy", "steps", "--eval_steps", "2"]
    with paddle.utils.unique_name.guard():
        language_model_sft.main([*line, "--max_steps", "4", "--output_dir", str(tmp_path / "run")])
    whole = (tmp_path / "run/checkpoint-4/lora_model_state.pdparams").read_bytes()
    with paddle.utils.unique_name.guard():
        language_model_sft.main(["--resume_from_checkpoint", str(tmp_path / "run/checkpoint-2")])
    assert (tmp_path / "run/checkpoint-4/lora_model_state.pdparams").read_bytes() == whole
    (found,) = predictors.Predictor(tmp_path / "run")([("upper: ",)])
    assert found["source"] == "upper: " and 0 < found["probability"] <= 1


def test_a_run_with_a_tokenizer_is_applied(tmp_path):
    tokenizer = tokenizer_of(tmp_path, *WORDS, "it", "is", ":", eos_token="[SEP]")
    tokenizer.save_pretrained(tmp_path / "base")
    shape = {**SHAPE, "vocab_size": len(tokenizer), "tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": 3}
    with paddle.utils.unique_name.guard():
        LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(tmp_path / "base")
    data = write(tmp_path / "rows.jsonl", PAIRS * 4, ("source", "target"))
    line = ["--data", str(data), "--model", str(tmp_path / "base"), "--max_steps", "1", *OFF]
    with paddle.utils.unique_name.guard():
        language_model_sft.main([*line, "--output_dir", str(tmp_path / "run")])
    (found,) = predictors.Predictor(tmp_path / "run")([("alpha beta:",)])
    assert set(found["output"].split()) <= set(tokenizer.vocab.token_to_idx)


def test_answer_tokens_that_are_cut_count_as_wrong():
    sums = np.array([[1.0, 2, 3], [0.5, 1, 2]])
    whole, cut = (fine_tuning.token_scores(types.SimpleNamespace(predictions=sums), lost) for lost in (0, 5))
    assert (whole["accuracy"], cut["accuracy"]) == (3 / 5, 3 / 10) and whole["perplexity"] == cut["perplexity"]


@pytest.fixture
def guesser(tmp_path):
    """A Trainer of a very small BERT without dropout, and a batch of rows of many lengths."""
    tokenizer = tokenizer_of(tmp_path, *WORDS, *"abcdefghijklmnop")
    args = arguments(masked_lm_pretraining, tmp_path)
    paddle.seed(0)
    with paddle.utils.unique_name.guard():
        config = BertConfig(**SHAPE, vocab_size=len(tokenizer), hidden_dropout_prob=0, attention_probs_dropout_prob=0)
        model = BertForMaskedLM(config)
        rows = [dict(tokenizer(" ".join([*"abcdefghijklmnop"[: 2 + i], *WORDS]))) for i in range(8)]
        data = {"train": rows, "validation": None, "test": None}
        trainer = masked_lm_pretraining.Guesser(model, args, data, DataCollatorWithPadding(tokenizer), tokenizer)
    return trainer, trainer.data_collator(rows)


def test_what_is_hidden(guesser):
    trainer, batch = guesser
    assert trainer.args.greater_is_better is True, "the accuracy"
    ids = np.tile(batch["input_ids"].numpy(), (400, 1))
    shown, hidden = trainer.hide(ids, 1)
    special = np.isin(ids, [0, 2, 3])
    assert not hidden[special].any() and hidden.any(axis=1).all()
    assert 0.15 < hidden[~special].mean() < 0.24, "0.15 and the one that each row has at least"
    kinds = [(shown == 4)[hidden].mean(), (shown == ids)[hidden].mean()]
    assert kinds[0] == pytest.approx(0.8 + 0.1 / 25, abs=0.02) and kinds[1] == pytest.approx(0.1 + 0.1 / 25, abs=0.02)
    assert np.array_equal(shown[~hidden], ids[~hidden])
    again, other = trainer.hide(ids, 1), trainer.hide(ids, 2)
    assert np.array_equal(again[0], shown) and not np.array_equal(other[1], hidden)


def test_a_head_that_takes_no_places_gives_the_same(guesser, monkeypatch):
    trainer, batch = guesser
    assert trainer.takes_places
    trainer.model.eval()
    some = trainer.guesses(trainer.model, batch)
    monkeypatch.setattr(type(trainer), "takes_places", False)
    every = trainer.guesses(trainer.model, batch)
    assert some[0].shape == every[0].shape == [len(some[1]), 25]
    np.testing.assert_allclose(some[0].numpy(), every[0].numpy(), rtol=1e-5, atol=1e-6)
    rows = some[2].numpy()
    assert rows.min() == 0 and rows.max() == 7 and (np.diff(rows) >= 0).all()


def test_a_new_head_begins_with_the_shares_of_the_tokens(guesser):
    trainer, _ = guesser
    masked_lm_pretraining.begin_with_shares(trainer.model, Counter({5: 3, 7: 1}))
    bias = trainer.model.cls.predictions.decoder_bias.numpy()
    share = np.exp(bias) / np.exp(bias).sum()
    assert share[[5, 7, 9]].tolist() == pytest.approx([4 / 29, 2 / 29, 1 / 29]) and bias[9] == 0


def test_a_long_text_becomes_several_rows(guesser):
    trainer, _ = guesser
    data = masked_lm_pretraining.Rows(["alpha beta gamma delta a b c", "alpha", ""], trainer.tokenizer, 5)
    assert [len(row["input_ids"]) for row in data] == [5, 5, 3, 3]
    assert data.account("train").startswith("0 of 3 rows cut, 0 of 3 texts lost, 1 rows left without anything to learn")
