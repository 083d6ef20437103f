"""Label a text, or a pair of texts, with the model that a run of sequence_classification.py has left.

    python recipes/predict.py runs/sequence_classification-20261121-140000 "Return the name of a file."
    python recipes/predict.py runs/sequence_classification-20261121-140000 --max_length 128 "a text" "the one beside it"

It prints the likeliest label and its probability. `label` does the same in a program.
"""

import argparse
import os
import shlex
import sys

import paddle
from common import fast_cpu  # noqa: F401 - before Paddle
from common.fine_tuning import start
from common.pretrained import load_tokenizer
from common.text_sources import error
from paddlenlp.transformers import AutoModelForSequenceClassification
from paddlenlp.utils.log import logger


def label(folder, *texts, max_length=64):
    """Return the likeliest label and its probability.

    Args:
        folder (str): the run's.
        *texts (str): a text, or both of a pair.
        max_length (int): tokens after which they are cut off, as in the training.

    Raises:
        ValueError: the folder has no model; there are more texts than two.
    """
    if not os.path.isfile(os.path.join(folder, "config.json")):
        raise error("There is no model of a run that has come to its end.", folder=folder)
    if len(texts) not in (1, 2):
        raise error("A text, or both of a pair, are to be labelled.", texts=texts)
    tokenizer, model = load_tokenizer(folder), AutoModelForSequenceClassification.from_pretrained(folder)
    model.eval()
    with paddle.no_grad():
        logits = model(**tokenizer(*texts, max_length=max_length, truncation=True, return_tensors="pd"))
    logits = logits[0] if isinstance(logits, (tuple, list)) else logits
    shares = paddle.nn.functional.softmax(logits, axis=-1)[0].tolist()
    best = max(range(len(shares)), key=shares.__getitem__)
    return model.config.id2label[best], shares[best]


def command(folder, texts, max_length):
    """Return the command that labels texts with the model of a run."""
    script = [sys.executable, os.path.relpath(__file__)]
    return shlex.join([*script, folder, "--max_length", str(max_length), *texts])


def say(argv):
    """Do what a command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="of the run")
    parser.add_argument("texts", nargs="+", metavar="text", help="a text, or both of a pair")
    parser.add_argument("--max_length", type=int, default=64, help="tokens after which they are cut off (64)")
    args = parser.parse_args(argv)
    logger.set_level("WARNING")
    name, share = label(args.folder, *args.texts, max_length=args.max_length)
    print(f"{name} ({share:.3f})")


def main(argv=None):
    """Run it."""
    start(say, argv)


if __name__ == "__main__":
    main()
