"""Tasks with answers from Python's own library, which need no hub and no file.

Each function returns a `Parts`: rows for training, validation and test, few enough for two cores to learn in minutes.
"""

import ast
import builtins
import datetime
import functools
import math
import random
import re
import sys
from dataclasses import dataclass

from .errors import error
from .parts import Parts, deal, draw, sizes
from .text_data import NO_DOCSTRINGS, library_trees

EXCEPTIONS = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)
}


@dataclass(frozen=True)
class Function:
    """A function of the library: its name, the names of its arguments with their defaults or None, its docstring."""

    name: str
    arguments: dict
    docstring: str


@functools.cache
def functions():
    """Return the functions of the library that have a docstring, one for each opening of a docstring."""
    found = {}
    for tree in library_trees():
        for node in ast.walk(tree):
            text = ast.get_docstring(node) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else None
            opening = " ".join(re.findall(r"\w+", (text or "").casefold())[:6])
            if opening:
                found.setdefault(opening, Function(node.name, _arguments(node.args), text))
    if len(found) < 1000:
        raise error(NO_DOCSTRINGS, data="docstrings")
    return sorted(found.values(), key=lambda function: draw(function.docstring))


def _arguments(args):
    names = [*args.posonlyargs, *args.args]
    defaults = [*[None] * (len(names) - len(args.defaults)), *args.defaults]
    pairs = [*zip(names, defaults), *zip(args.kwonlyargs, args.kw_defaults)]
    pairs = [(arg.arg, value) for arg, value in pairs if arg.arg not in ("self", "cls")]
    return {name: None if value is None else ast.unparse(value) for name, value in pairs}


def _source(what):
    return f"{what} in Python {sys.version.split()[0]}'s library"


def tagged_docstrings():
    """Return rows of (words, tags): the words of a docstring, tagged as arguments, exceptions or constants."""
    rows = []
    for function in functions():
        words = re.findall(r"\w+|[^\w\s]", function.docstring)[:60]
        tags = [_tag(word, function.arguments) for word in words]
        if "B-ARGUMENT" in tags:
            rows.append((words, tags))
    return deal(rows[:1200], lambda row: " ".join(row[0]), _source("Words of docstrings"))


def _tag(word, arguments):
    if word in arguments:
        return "B-ARGUMENT"
    return "B-CONSTANT" if word in ("None", "True", "False") else "B-EXCEPTION" if word in EXCEPTIONS else "O"


def signature_questions():
    """Return rows of (question, context, answers, begin of the first), from short signatures with two defaults."""
    rows = []
    for function in functions():
        defaults = {name: value for name, value in function.arguments.items() if value is not None and len(value) < 20}
        if len(defaults) < 2:
            continue
        context, begins = _signature(function)
        if len(context) > 120:  # two cores read the short ones in minutes
            continue
        for i, (name, value) in enumerate(defaults.items()):
            rows.append((f"What is the default of {name}?", context, (value,), begins[name] + len(name) + 1))
            if list(defaults.values()).count(value) == 1:
                rows.append((f"Which argument is {value} by default?", context, (name,), begins[name]))
            if i:
                before = list(function.arguments)[list(function.arguments).index(name) - 1]
                rows.append((f"Which argument comes after {before}?", context, (name,), begins[name]))
    return deal(rows[:1400], lambda row: row[1], _source("Questions about signatures"))


def _signature(function):
    text, begins = f"{function.name}(", {}
    for name, value in function.arguments.items():
        text += ", " if begins else ""
        begins[name] = len(text)
        text += name if value is None else f"{name}={value}"
    return f"{text}) - {_sentence(function.docstring)}", begins


def _sentence(docstring):
    """Return the first sentence of a docstring, in one line."""
    paragraph = " ".join(re.split(r"\n\s*\n", docstring.strip(), maxsplit=1)[0].split())
    return re.split(r"(?<=\w\.) ", paragraph, maxsplit=1)[0]


def function_names():
    """Return rows of (docstring's first sentence, the words of the function's name)."""
    rows = []
    for function in functions():
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", function.name)
        if words and not function.name.startswith("__"):
            rows.append((_sentence(function.docstring), " ".join(words).lower()))
    return deal(rows, lambda row: row[0], _source("Docstrings and names of functions"))


def written_dates():
    """Return rows of (a day in words, its year, month and day in digits)."""
    forms = (
        "on %A the %d of %B in the year %Y",
        "%B %d %Y a %A",
        "we met on a %A and it was %d %B %Y",
        "in %Y on %B %d",
    )
    first, last = (datetime.date(year, 1, 1).toordinal() for year in (1960, 2040))
    days = [datetime.date.fromordinal(n) for n in random.Random(0).sample(range(first, last), 3000)]
    rows = [(day.strftime(forms[i % len(forms)]), day.strftime("%Y %m %d")) for i, day in enumerate(days)]
    return deal(rows, lambda row: row[1], "Days in words and in digits")


def docstring_pairs():
    """Return rows of (sentence, text, label): 1 if the text continues the sentence's docstring, 0 if another's."""
    pairs = []
    for function in functions():
        first = _sentence(function.docstring)
        rest = " ".join(function.docstring.split())[len(first) :].strip()
        if len(first.split()) >= 4 and len(rest.split()) >= 8:
            pairs.append((first, rest))
    parts = deal(pairs[:900], lambda row: row[0], "")
    found = parts.each(
        lambda rows: [pair for i, (a, b) in enumerate(rows) for pair in ((a, b, 1), (a, rows[i - 1][1], 0))]
    )
    return Parts(**found, description=f"{_source('Sentences and texts of docstrings')}: {sizes(found)} rows.")


def docstring_texts():
    """Return docstrings, each in one line."""
    texts = [" ".join(function.docstring.split()) for function in functions()]
    long = [text for text in texts if len(text.split()) >= 8]
    return deal(
        long[:: math.ceil(len(long) / 1900)], str, _source("Docstrings")
    )  # `functions` has the order of the deal
