"""Apply the model of a run to new input and write labels, tags, summaries or texts, with probabilities.

    python recipes/predict.py runs/text_classification-20261121-140000 "a text" "another text"
    python recipes/predict.py runs/text_classification-20261121-140000 --input reviews.csv --output labelled.csv
    python recipes/predict.py runs/image_classification-20261121-140000 a.png b.png

Without --output, it prints one line per input. An input file is .txt (one text per line), .csv, .tsv, .json or .jsonl.
A model of pairs reads two arguments, two columns, or two texts with a tab between. In Python: common/predictors.py.
"""

import argparse
import contextlib
import csv
import io
import itertools
import json
import re
import sys
from pathlib import Path

import common.start  # noqa: F401 - before Paddle
from common import error
from common.files import SUFFIXES, USUAL_NAMES, Notes, decode, noted, read_table, read_tagged
from common.language_data import ALPACA, talks_of, until_question, with_prompts
from common.rows import rows_of_columns
from common.start import entry_point

BATCH = 32  # inputs
TAGGED = re.compile(r"\S+([ \t]+\S+)*[ \t]+(O|[BIMESLU][-_]\S+)\s*$")  # a word and its tag


def read_inputs(args, expected, notes):
    """Return an iterable of tuples, the texts of each input or a conversation; `expected` is what the run noted."""
    path, trained_on, width = args.input, expected.get("columns", {}), 2 if expected.get("pair") else 1
    if args.inputs:
        if len(args.inputs) % width:
            raise error("This model reads pairs: give an even number of texts.", inputs=args.inputs)
        notes.rows = len(args.inputs) // width
        given = [texts for texts in zip(*[iter(args.inputs)] * width) if any(map(str.strip, texts))]
        notes.dropped["without a text"] = notes.rows - len(given)
        return given
    if not path.exists() or path.is_dir():  # it may be a pipe
        problem = "The input file does not exist or is a folder; give images as arguments, such as `FOLDER/*.png`."
        raise error(problem, input=path)
    wanted, prompts = {name: getattr(args, name) for name in ("text_column", "text_pair_column")[:width]}, ()
    if expected["recipe"] in ("seq2seq", "language_model_sft"):  # a text is written for each prompt
        trained_on, prompts = {"text_column": trained_on.get("source_field")}, USUAL_NAMES["source_field"]
    tagger = expected["recipe"] == "token_classification" and path.is_file() and args.text_column is None
    if tagger and is_tagged(path, expected, args.encoding):
        rows = read_tagged(path, trained_on.get("word_column", 0), encoding=args.encoding, notes=notes)
        print(f"{path} has tagged words: their tags are not read.", file=sys.stderr)
        if "word_column" in trained_on and notes.columns != trained_on:
            print(f"Its columns are {notes.columns}, those of the training were {trained_on}.", file=sys.stderr)
        return [(words,) for words, _ in rows]
    if path.suffix.lower() not in {*SUFFIXES} - {".txt"} and {args.has_header, *wanted.values()} == {None}:
        text = decode(path, args.encoding)
        lines = [line for line in text.split("\n") if line.strip()]
        column = wanted["text_column"] = trained_on.get("text_column")
        tabbed = path.is_file() and lines and all("\t" in line for line in lines)
        if not tabbed or not (column in lines[0].split("\t") if column and not column.isdigit() else width == 1):
            return _lines(io.StringIO(text), width, path, notes)
    likely = [name for name in map(trained_on.get, wanted) if name and not name.isdigit()]
    names, table = read_table(path, wanted, args.has_header, args.encoding, [*likely, *prompts])
    if expected["recipe"] == "language_model_sft" and (talks := talks_of(names, table, path)):
        asked = [(place, until_question(turns)) for place, turns in talks]
        notes.drop([(place, "question") for place, turns in asked if not turns], len(asked), path)
        return [(turns,) for _, turns in asked if turns]
    words = next((names.index(name) for name in ("tokens", "words") if name in names), None)
    if tagger and words is not None:
        notes.drop([(place, "word") for place, cells in table if not cells[words]], len(table), path)
        return [(cells[words],) for _, cells in table if cells[words]]
    if ALPACA in likely and {"instruction", "input"} <= set(names):
        names, table = with_prompts(names, table)
    for name, column in wanted.items():
        wanted[name] = trained_on[name] if column is None and trained_on.get(name) in names else column
    rows = rows_of_columns(names, table, wanted, path, notes, prompts)
    if likely and not {*likely} & {*notes.columns.values()}:
        print(f"Its columns are {notes.columns}, those of the training were {trained_on}.", file=sys.stderr)
    return rows


def is_tagged(path, expected, encoding):
    """Return whether a file is CoNLL-U or most of its lines are a word and a tag of an entity or of the training."""
    column, tags = expected.get("columns", {}).get("tag_column", -1), {*expected.get("tags", ())}
    lines = [line for line in decode(path, encoding).split("\n") if line.strip()]
    tagged = [line for line in lines if TAGGED.match(line) or not tags.isdisjoint(line.split()[column:][:1])]
    return path.suffix.lower() == ".conllu" or 2 * len(tagged) > len(lines)


def _lines(lines, width, source, notes):
    for notes.rows, line in enumerate(lines, 1):
        texts = tuple(line.rstrip("\r\n").split("\t")) if width == 2 else (line.rstrip("\r\n"),)
        if not any(text.strip() for text in texts):
            notes.dropped["without a text"] += 1
        elif len(texts) == width:
            yield texts
        else:
            raise error(f"Line {notes.rows} must be two texts with a tab between them.", source=source)


def write(predictions, path, out):
    """Write each prediction at once: to a .csv or .jsonl file, or as a line on standard output."""
    writer = None
    for row in predictions:
        if path is None:
            print(" ".join(shown(row).splitlines()), file=out, flush=True)
        elif path.suffix.lower() == ".jsonl":
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
        else:
            row = cells_of(row)
            if writer is None:
                writer = csv.DictWriter(out, list(row))
                writer.writeheader()
            writer.writerow(row)


def cells_of(row):
    """Return a prediction as cells: lists in words, one column for the probability of each class."""
    each = row.pop("probabilities", {})
    if "entities" in row:
        row["entities"] = "; ".join(f"{one['text']} ({one['type']})" for one in row["entities"])
        each = {"probabilities": [f"{share:.6g}" for share in each]}
    else:
        each = {f"p({name})": share for name, share in each.items()}
    cells = {**row, **each, "tokens left out": row.get("tokens left out", 0)}
    between = {"labels": ", "}
    return {name: between.get(name, " ").join(cell) if isinstance(cell, list) else cell for name, cell in cells.items()}


def shown(row):
    if "tags" in row:
        tagged = " ".join(f"{word}/{tag}" for word, tag in zip(row["words"], row["tags"]))
        return f"{tagged} ({min(row['probabilities'], default=1):.3f})"
    said = (f"{row['image']}: " if "image" in row else "") + str(row.get("label", row.get("output", "")))
    said += f"{row['score']:.4g}" if "score" in row else ", ".join(row.get("labels", ()))
    said += f" ({row['probability']:.3f})" if "probability" in row else ""
    return said + (f"; {row['tokens left out']} tokens left out" if "tokens left out" in row else "")


def say(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder of the run")
    parser.add_argument("inputs", nargs="*", metavar="input", help="texts, or paths of images")
    parser.add_argument("--input", type=Path, metavar="FILE", help="read inputs from a file")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write a .jsonl file, or a .csv file for Excel")
    parser.add_argument("--text_column", help="column of the text: name, or number from 0; default: as in the training")
    parser.add_argument("--text_pair_column", help="column of the second text of a pair")
    parser.add_argument("--has_header", type=lambda text: json.loads(text.lower()), help="true or false; else detected")
    parser.add_argument("--encoding", help="encoding of the file; detected by default")
    args = parser.parse_intermixed_args(argv)
    if bool(args.inputs) == bool(args.input):
        raise error("Give either inputs or `--input FILE`.", inputs=args.inputs, input=args.input)
    if (path := args.output) and path.suffix.lower() not in (".csv", ".jsonl"):
        raise error("`--output` must end in .csv or .jsonl.", output=path)
    expected, notes = noted(args.folder), Notes()
    inputs = iter(read_inputs(args, expected, notes))
    from common.predictors import Predictor  # imports Paddle, which takes seconds
    from paddlenlp.utils.log import logger

    logger.set_level("WARNING")
    predictor = Predictor(args.folder)

    def predictions():
        for batch in iter(lambda: list(itertools.islice(inputs, BATCH)), []):
            for row in predictor(batch):
                notes.dropped["read in part"] += "tokens left out" in row
                notes.dropped["unreadable"] += "unreadable" in row
                if "unreadable" in row:
                    print(row["unreadable"], file=sys.stderr)
                else:
                    yield row

    encoding = "utf-8" if path and path.suffix.lower() == ".jsonl" else "utf-8-sig"  # Excel needs the mark
    first = list(itertools.islice(rows := predictions(), 1))  # an error leaves an earlier output as it is
    if not first:
        raise error("There is nothing to predict.", inputs=args.inputs or args.input, dropped=dict(+notes.dropped))
    with open(path, "w", encoding=encoding, newline="") if path else contextlib.nullcontext(sys.stdout) as out:
        write(itertools.chain(first, rows), path, out)
    if left := sum(notes.dropped.values()):
        why = ", ".join(f"{count} {reason}" for reason, count in notes.dropped.items() if count)
        print(f"scores cover {notes.rows - left} of {notes.rows} inputs: {why}.", file=sys.stderr)


main = entry_point(say)

if __name__ == "__main__":
    main()
