"""Tasks with answers from Python's own library, which need no hub and no file, and minutes on two cores."""

import ast
import builtins
import datetime
import functools
import random
import re
import sys
import sysconfig
import tokenize
from pathlib import Path

from . import silent
from .rows import deal, draw

NODES = {ast.Module: "module", ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "function"}
NOT_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages"}
EXCEPTIONS = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)}


def docstrings():
    """Yield (syntax node, docstring) of the modules, classes and functions of Python's own library."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if NOT_LIBRARY.isdisjoint(path.relative_to(root).parts):
            with tokenize.open(path) as file, silent():  # some files hold escapes that the compiler warns of
                nodes = [node for node in ast.walk(ast.parse(file.read())) if type(node) in NODES]
            yield from ((node, text) for node in nodes if (text := ast.get_docstring(node)))


def _by_opening(words, part=str):
    """Return opening of so many words of a docstring -> [(node, docstring), ...]: no template is in two splits."""
    found = {}
    for node, text in docstrings():
        if opening := tuple(re.findall(r"\w+", part(text).casefold())[:words]):
            found.setdefault(opening, []).append((node, text))
    return found


@functools.cache
def docstring_kinds():
    """Return [(first paragraph of a docstring, its kind), ...], one per opening of four words of one kind alone."""
    rows = []
    for opening, found in _by_opening(4, _paragraph).items():
        kinds = {NODES[type(node)] for node, _ in found}
        if len(opening) == 4 and len(kinds) == 1:
            rows.append((_paragraph(found[0][1]), *kinds))
    return rows


@functools.cache
def functions():
    """Return [(name, names of its arguments, docstring), ...] of functions, one for each opening of a docstring."""
    rows = []
    for found in _by_opening(6).values():
        for node, text in [one for one in found if NODES[type(one[0])] == "function"][:1]:
            args = {arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
            rows.append((node.name, args - {"self", "cls"}, text))
    return sorted(rows, key=lambda function: draw(function[2]))


def source_of(what):
    return f"{what} in Python {sys.version.split()[0]}'s library"


def tagged_docstrings():
    """Return rows of (words, tags): the words of a docstring, tagged as arguments, exceptions or constants."""
    rows, usual = [], dict.fromkeys(("None", "True", "False"), "B-CONSTANT")
    usual |= dict.fromkeys(EXCEPTIONS, "B-EXCEPTION")
    for _, arguments, docstring in functions():
        words = re.findall(r"\w+|[^\w\s]", docstring)[:40]
        tags = ["B-ARGUMENT" if word in arguments else usual.get(word, "O") for word in words]
        if "B-ARGUMENT" in tags:
            rows.append((words, tags))
    return deal(rows[:1200], lambda row: " ".join(row[0]), source_of("Words of docstrings"))


def _paragraph(docstring):
    return " ".join(re.split(r"\n\s*\n", docstring.strip(), maxsplit=1)[0].split())


def _sentence(docstring):
    return re.split(r"(?<=\w\.) ", _paragraph(docstring), maxsplit=1)[0]


def named_functions():
    """Return conversations: the words of a function's name, its docstring's first sentence."""
    rows = []
    for name, _, docstring in functions():
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)
        text = _sentence(docstring)
        if words and not name.startswith("__") and len(text) < 60:  # two cores read the short ones in minutes
            rows.append((("user", f"{' '.join(words).lower()}: "), ("assistant", text)))
    return deal(rows, lambda row: row[1][1], source_of("Docstrings and names of functions"))


def written_dates():
    forms = ["on %A the %d of %B in the year %Y", "%B %d %Y a %A"]
    forms += ["we met on a %A and it was %d %B %Y", "in %Y on %B %d"]
    first, last = (datetime.date(year, 1, 1).toordinal() for year in (1960, 2040))
    days = [datetime.date.fromordinal(n) for n in random.Random(0).sample(range(first, last), 3000)]
    rows = [(day.strftime(forms[i % len(forms)]), day.strftime("%Y %m %d")) for i, day in enumerate(days)]
    return deal(rows, lambda row: row[1], "Days in words and in digits")


def docstring_texts():
    texts = [_sentence(docstring) for _, _, docstring in functions()]
    return deal([t for t in texts if 8 <= len(t.split()) <= 16][:1900], str, source_of("First sentences of docstrings"))
