"""Three made-up files like a newcomer's: python tests/recipes/newcomer_data.py FOLDER writes them.

subj.csv (text;label) says whether a sentence is subjective, banking.csv (text,category) has 77 intents, cola.tsv (label
first, no names) says whether a sentence is grammatical.
"""

import csv
import itertools
import pathlib
import random
import sys

ACTIONS = {
    "activate": ("how do i activate {}", "my {} does not work yet", "what do i do first with {}"),
    "cancel": ("please cancel {}", "i no longer want {}", "can you stop {}"),
    "fee": ("why was i charged for {}", "how much does {} cost", "there is an extra charge on {}"),
    "late": ("{} has not arrived", "when will i get {}", "how long does {} take"),
    "limit": ("is there a maximum for {}", "how often may i use {}", "raise the limit of {}"),
    "unknown": ("i do not recognise {}", "somebody else made {}", "{} looks like fraud"),
    "change": ("i want to change {}", "edit the details of {}", "{} has the wrong details"),
}
OBJECTS = ("card", "virtual card", "top-up", "transfer", "direct debit", "cash withdrawal", "exchange", "account")
OBJECTS += ("passcode", "refund", "statement")
OPENINGS = ("", "hello, ", "hi there, ", "quick question: ", "excuse me, ", "urgent: ")
THINGS = [
    "film",
    "story",
    "script",
    "cast",
    "music",
    "ending",
    "pacing",
    "director",
    "hero",
    "comedy",
    "drama",
    "sequel",
]
OPINIONS = ("is a charming surprise", "never quite works", "feels oddly moving", "deserves far better")
OPINIONS += ("is a tedious mess", "will win you over", "is too clever by half", "wears its heart proudly")
OPINIONS += ("lacks any real wit",)
FACTS = ("moves to the city with a brother", "is shot in black and white", "opens in a small town in 1942")
FACTS += ("follows two sisters to the coast", "runs for ninety minutes", "was made in four weeks")
FACTS += ("ends at a railway station", "is based on a novel of 1890", "has three parts")
SUBJECTS = ("the cat", "my sister", "every student", "the old man", "a doctor", "our neighbour", "the child", "no one")
VERBS = ("reads", "sees", "likes", "sells", "paints", "finds", "wants", "keeps")
NOUNS = ("the letter", "a red car", "these books", "an apple", "the garden", "two chairs", "some bread", "her picture")


def subj(draw):
    """Return [(text, label), ...]: opinions and facts about films."""
    ends = [(end, "subjective") for end in OPINIONS] + [(end, "objective") for end in FACTS]
    rows = [(f"the {thing} {end}", label) for thing in THINGS for end, label in ends]
    draw.shuffle(rows)
    return rows


def banking(draw):
    """Return [(text, intent), ...]: 77 intents, 12 texts each."""
    rows = []
    for (action, templates), thing in itertools.product(ACTIONS.items(), OBJECTS):
        texts = [opening + template.format(f"my {thing}") for opening in OPENINGS for template in templates]
        rows += [(text, f"{action}_{thing.replace(' ', '_')}") for text in draw.sample(texts, 12)]
    draw.shuffle(rows)
    return rows


def cola(draw):
    """Return [(label, text), ...]: 1 for a sentence, 0 for one with two neighbouring words exchanged."""
    sentences = [" ".join(parts) for parts in itertools.product(SUBJECTS, VERBS, NOUNS)]
    rows = []
    for number, sentence in enumerate(draw.sample(sentences, 400)):
        words = sentence.split()
        if number % 3 == 0:
            at = draw.randrange(len(words) - 1)
            words[at : at + 2] = words[at + 1], words[at]
        rows.append((0 if number % 3 == 0 else 1, " ".join(words)))
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
