"""Three made-up files like a newcomer's: python tests/recipes/newcomer_data.py FOLDER writes them.

subj.csv (text;label) says whether a sentence is subjective, banking.csv (text,category) has 77 intents, cola.tsv (label
first, no names) says whether a sentence is grammatical.
"""

import csv
import itertools
import pathlib
import random
import sys

ACTIONS = ("activate", "cancel", "charge", "delay", "limit", "report", "change")
OBJECTS = ("card", "virtual card", "top-up", "transfer", "direct debit", "cash withdrawal", "exchange", "account")
OBJECTS += ("passcode", "refund", "statement")
OPENINGS = ("please", "hello, can you", "i want to", "how do i", "urgent:", "is there a way to")
THINGS = ("film", "story", "script", "cast", "music", "ending", "pacing", "director", "hero", "comedy", "drama")
OPINIONS = ("is a charming surprise", "never quite works", "feels oddly moving", "deserves far better")
OPINIONS += ("is a tedious mess", "will win you over", "is too clever by half", "wears its heart proudly")
FACTS = ("moves to the city with a brother", "is shot in black and white", "opens in a small town in 1942")
FACTS += ("follows two sisters to the coast", "runs for ninety minutes", "was made in four weeks", "has three parts")
SUBJECTS = ("the cat", "my sister", "every student", "the old man", "a doctor", "our neighbour", "the child", "no one")
VERBS = ("reads", "sees", "likes", "sells", "paints", "finds", "wants", "keeps")
NOUNS = ("the letter", "a red car", "these books", "an apple", "the garden", "two chairs", "some bread", "her picture")


def subj(draw):
    ends = [(end, "subjective") for end in OPINIONS] + [(end, "objective") for end in FACTS]
    rows = [(f"the {thing} {end}", label) for thing in THINGS for end, label in ends]
    return draw.sample(rows, len(rows))


def banking(draw):
    rows = []
    for action, thing in itertools.product(ACTIONS, OBJECTS):
        texts = [f"{opening} {action} {whose} {thing}" for opening in OPENINGS for whose in ("my", "the")]
        rows += [(text, f"{action}_{thing.replace(' ', '_')}") for text in texts]
    return draw.sample(rows, len(rows))


def cola(draw):
    """Return [(label, text), ...]: 1 for a sentence, 0 for one with two neighbouring words exchanged."""
    rows = []
    for number, parts in enumerate(draw.sample(list(itertools.product(SUBJECTS, VERBS, NOUNS)), 400)):
        words = " ".join(parts).split()
        if number % 3 == 0:
            at = draw.randrange(len(words) - 1)
            words[at : at + 2] = words[at + 1], words[at]
        rows.append((int(number % 3 != 0), " ".join(words)))
    return rows


def write(folder):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    files = {
        "subj.csv": (";", [("text", "label"), *subj(draw)]),
        "banking.csv": (",", [("text", "category"), *banking(draw)]),
        "cola.tsv": ("\t", cola(draw)),
    }
    for name, (delimiter, rows) in files.items():
        with open(folder / name, "w", encoding="utf-8", newline="") as file:
            csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return folder


if __name__ == "__main__":
    write(sys.argv[1])
