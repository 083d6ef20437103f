"""What the tests of the evidence share: a tiny encoder and a data set."""

import paddle
import pytest
from paddlenlp.transformers import BertConfig, BertForSequenceClassification, BertTokenizer

WORDS = ["good", "fine", "nice", "bad", "poor", "worse", "thing", "book", "film"]


@pytest.fixture(scope="session")
def encoder_and_texts(tmp_path_factory):
    """A folder with a tiny random `encoder`, with a vocabulary of its own, and the files of a task, `texts`."""
    folder = tmp_path_factory.mktemp("evidence")
    (folder / "encoder").mkdir()
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "never"]))
    size = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    paddle.seed(0)
    BertForSequenceClassification(BertConfig(vocab_size=15, **size)).save_pretrained(str(folder / "encoder"))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(str(folder / "encoder"))
    (folder / "texts").mkdir()
    rows = [(f"{word} {thing}", "yes" if i < 3 else "no") for i, word in enumerate(WORDS[:6]) for thing in WORDS[6:]]
    for part, some in (("train", rows), ("dev", rows[::4]), ("test", rows[::2])):
        (folder / "texts" / f"{part}.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in some))
    return folder
