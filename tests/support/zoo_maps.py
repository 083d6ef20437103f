"""Maps of the layers of a model's parameters, written by hand in zoo_maps.txt, and their comparison with a LayerMap.

A map has one row for each tower, "embeddings -> blocks -> head", and a last row without blocks for what several towers
share. A word stands for the parameters whose names are it or continue it after a dot, "-" for none. In the blocks
`a.{3}` stands for the blocks `a.0` to `a.2`; the words count on from one to the next, `|` counts from the first block
again, and `a=2` puts `a` in the second block. A `!` takes a word out of the block it is in. Whatever a map leaves out
or names twice is an error in the map. All words may be shortened as names are: ``a.[0-2].{b,c.{d,e}}``, `@wb` for a
weight and a bias, `@bn` for those and the statistics of a BatchNorm.
"""

import pathlib
import re

FOLDER = pathlib.Path(__file__).parent
SHORT = {"@wb": "{weight,bias}", "@bn": "{weight,bias,_mean,_variance}"}


def read_names():
    """Return model -> names of its parameters in their order, in short."""
    lines = (FOLDER / "zoo_names.txt").read_text().splitlines()
    return dict(line.split(": ", 1) for line in lines if not line.startswith("#"))


def read_maps():
    """Return model -> map."""
    maps = {}
    for line in (FOLDER / "zoo_maps.txt").read_text().splitlines():
        if line.startswith("#"):
            continue
        if not line.startswith(" "):
            model, _, line = line.partition(":")
            maps[model] = []
        if line.strip():
            embeddings, blocks, head = ("" if part == "-" else part for part in line.strip().split(" -> "))
            maps[model].append((blocks, embeddings, head))
    return maps


def spelled(names):
    """Spell out words such as `blocks.[0-3].{weight,bias}`."""
    for short, long in SHORT.items():
        names = names.replace(short, long)
    return [name for word in names.split() for name in _spelled_word(word)]


def _spelled_word(word):
    gap = re.search(r"\[(\d+)-(\d+)\]|\{", word)
    if not gap:
        return [word]
    if gap[1]:
        fillings, end = range(int(gap[1]), int(gap[2]) + 1), gap.end()
    else:
        fillings, end = _fillings(word, gap.start())
    rests = _spelled_word(word[end:])
    return [f"{word[: gap.start()]}{filling}{rest}" for filling in fillings for rest in rests]


def _fillings(word, start):
    """Give what is between the commas of the braces that begin at `start`, spelled out, and where they end."""
    depth, since, found = 0, start + 1, []
    for end in range(start, len(word)):
        depth += {"{": 1, "}": -1}.get(word[end], 0)
        if depth == 0 or (depth == 1 and word[end] == ","):
            found += _spelled_word(word[since:end])
            since = end + 1
        if depth == 0:
            return found, end + 1
    raise ValueError(f"A brace is not closed. Received: word={word}")


def blocks_of(row):
    """Give (word, index) for every block of a row, and the row's depth."""
    words, index = [], 0
    for part in row[0].split():
        if part == "|":
            index = 0
        elif "=" in part:
            part, at = part.split("=")
            words += [(word, int(at)) for word in spelled(part)]
        else:
            count = re.fullmatch(r"(.*)\.\{(\d+)\}", part)
            blocks = [f"{count[1]}.{i}" for i in range(int(count[2]))] if count else spelled(part)
            words += [(word, index + i) for i, word in enumerate(blocks, 1)]
            index += len(blocks)
    return words, max((index for _, index in words), default=0)


def expected(names, rows):
    """Give {name: (row, index, depth)}; the map must have one entry for a name, and a name for every entry."""
    depths = [blocks_of(row)[1] or None for row in rows]
    deepest = max(depth for depth in depths if depth)
    entries = []
    for i, row in enumerate(rows):
        depth = depths[i] or deepest
        entries += [(word, (i, index, depth)) for word, index in blocks_of(row)[0]]
        entries += [(word, (i, 0, depth)) for word in spelled(row[1])]
        entries += [(word, (i, depth + 1, depth)) for word in spelled(row[2])]
    found, used = {}, set()
    for name in names:
        hits = [entry for entry in entries if f"{name}.".startswith(entry[0].lstrip("!") + ".")]
        hits = [entry for entry in hits if entry[0].startswith("!")] or hits
        assert len(hits) == 1, f"{len(hits)} entries of the map written by hand are for {name}: {hits}"
        found[name] = hits[0][1]
        used.update(hits)
    assert not set(entries) - used, f"entries for no parameter: {sorted(set(entries) - used)}"
    return found


def check(layer_map, names, rows):
    """Compare a LayerMap with a map written by hand."""
    want = expected(names, rows)
    got = {name: layer_map.layer_of(name) for name in names}
    wrong = {
        name: f"{(got[name].tower, got[name].index, got[name].depth)}, not layer {index} of {depth + 1}"
        for name, (_, index, depth) in want.items()
        if (got[name].index, got[name].depth) != (index, depth)
    }
    lines = [f"{len(wrong)} of {len(names)} parameters differ", *map(": ".join, wrong.items())]
    assert not wrong, "\n".join(lines)
    assert layer_map.n_layers == max(depth for _, _, depth in want.values())
    towers = {}
    for name, (row, _, _) in want.items():
        towers.setdefault(row, set()).add(got[name].tower)
    for row, tower in towers.items():
        assert len(tower) == 1, f"one tower, several names: {tower}"
        stack = re.fullmatch(r"(\S*)\.\{\d+\}", rows[row][0])
        # one list of blocks, in no other list, gives the tower its name
        if stack and not re.search(r"\.\d+\.", stack[1]):
            assert tower == {stack[1]}, f"a tower called {tower}, not {stack[1]}"
        elif not rows[row][0]:
            assert tower == {""}, f"what several towers share is in tower {tower}"
    assert len(set(map(min, towers.values()))) == len(towers), f"several towers, one name: {towers}"
