"""Apply the model of a run to new input and write labels, tags, summaries or texts, with probabilities.

    python recipes/predict.py runs/text_classification-20261121-140000 "a text" "another text"
    python recipes/predict.py runs/text_classification-20261121-140000 --pair "a text" "its partner"
    python recipes/predict.py runs/text_classification-20261121-140000 --input reviews.csv --output labelled.csv
    python recipes/predict.py runs/image_classification-20261121-140000 a.png b.png
    cat texts.txt | python recipes/predict.py runs/token_classification-20261121-140000 --input - --output tags.jsonl

Without --output, it prints one line per input. An input file is .txt (one text per line), .csv, .tsv or .jsonl.
Standard input has one text per line or, with --pair, two texts with a tab between them. In Python, use `Predictor`
of recipes/common/predictors.py.
"""

import argparse
import contextlib
import csv
import itertools
import json
import os
import shlex
import sys
from pathlib import Path

import common.start  # noqa: F401 - before Paddle
from common.errors import check_least, error
from common.files import SUFFIXES, column_of, decode, noted, read_table

COLUMNS = ("text_column", "text_pair_column")


def command(folder, pair=False):
    """Return a command line that labels texts with the model of a run."""
    texts = ["--pair", "a text", "its partner"] if pair else ["a text", "another text"]
    return shlex.join([sys.executable, os.path.relpath(__file__), folder, *texts])


def read_inputs(args, trained_on):
    """Return an iterator of tuples: the text or the pair of each input.

    In a file with several columns, the texts are in the columns of the command line, or else in columns with the names
    that the training read, or else in columns with usual names.
    """
    width = 2 if args.pair else 1
    if args.inputs:
        if len(args.inputs) % width:
            raise error("`--pair` needs an even number of texts.", inputs=args.inputs)
        return zip(*[iter(args.inputs)] * width)
    if args.input == "-":
        return _lines(sys.stdin, width, "standard input")
    path = Path(args.input)
    if not path.is_file():
        raise error("The input file does not exist.", input=path)
    if path.suffix.lower() not in SUFFIXES or path.suffix.lower() == ".txt":
        return _lines(decode(path, args.encoding).splitlines(), width, path)
    wanted = {name: getattr(args, name) for name in COLUMNS[:width]}
    likely = [trained_on[name] for name in wanted if not trained_on.get(name, "0").isdigit()]
    names, table = read_table(path, wanted, args.has_header, args.encoding, likely)
    columns = []
    for i, (name, column) in enumerate(wanted.items()):
        column = trained_on[name] if column is None and trained_on.get(name) in names else column
        columns.append(column_of(names, name, column, path, (str(i),) if len(names) == width else ()))
    wrong = [
        place for place, cells in table if len(cells) != len(names) or not all(_has_text(cells[i]) for i in columns)
    ]
    if wrong:
        problem = f"{len(wrong)} rows lack a text or one of the columns {names}, the first at {wrong[0].lower()}."
        raise error(problem, input=path)
    return (tuple(str(cells[i]) for i in columns) for _, cells in table)


def _has_text(cell):
    return cell is not None and str(cell).strip() != ""


def _lines(lines, width, source):
    for number, line in enumerate(lines, 1):
        texts = tuple(line.rstrip("\r\n").split("\t")) if width == 2 else (line.rstrip("\r\n"),)
        if len(texts) != width:
            raise error(f"Line {number} must be two texts with a tab between them.", source=source)
        if any(text.strip() for text in texts):
            yield texts


def write(predictions, path, out):
    """Write each prediction at once: to a .csv or .jsonl file, or as a line on standard output."""
    writer = None
    for row in predictions:
        if path is None:
            print(shown(row), file=out, flush=True)
        elif path.suffix.lower() == ".jsonl":
            out.write(json.dumps(row, ensure_ascii=False) + "\n")
        else:
            each = row.pop("probabilities", {})
            row = {
                name: " ".join(map(str, value)) if name in ("words", "tags", "labels") else value
                for name, value in row.items()
            }
            if isinstance(each, dict):
                row.update({f"p({name})": value for name, value in each.items()})
            else:
                row["entities"] = "; ".join(f"{one['text']} ({one['type']})" for one in row["entities"])
                row["probabilities"] = " ".join(f"{value:.6g}" for value in each)
            row["tokens left out"] = row.pop("tokens left out", 0)
            if writer is None:
                writer = csv.DictWriter(out, list(row))
                writer.writeheader()
            writer.writerow(row)


def shown(row):
    """Return a prediction in one line."""
    if "tags" in row:
        return (
            " ".join(f"{w}/{t}" for w, t in zip(row["words"], row["tags"]))
            + f" ({min(row['probabilities'], default=1):.3f})"
        )
    left = f"; {row['tokens left out']} tokens left out" if "tokens left out" in row else ""
    if "score" in row:
        return f"{row['score']:.4g}{left}"
    if "labels" in row:
        return f"{', '.join(row['labels']) or 'no label'}{left}"
    image = f"{row['image']}: " if "image" in row else ""
    return f"{image}{row.get('label', row.get('output'))} ({row['probability']:.3f}){left}"


def say(argv):
    """Run a command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder of the run")
    parser.add_argument("inputs", nargs="*", metavar="input", help="texts, or paths of images")
    parser.add_argument("--pair", action="store_true", help="inputs are pairs of texts")
    parser.add_argument("--input", metavar="FILE", help="read inputs from a file; - is standard input")
    parser.add_argument(
        "--output", metavar="FILE", help="write a .jsonl file, or a .csv file (UTF-8 with a byte order mark)"
    )
    column = "column of the text in the file: name, or number from 0; by default as in the training"
    parser.add_argument("--text_column", help=column)
    parser.add_argument("--text_pair_column", help="column of the second text of a pair")
    parser.add_argument(
        "--has_header", type=json.loads, help="true or false: whether the file has column names; detected by default"
    )
    parser.add_argument("--encoding", help="encoding of the file; detected by default")
    parser.add_argument("--batch_size", type=int, default=32, help="inputs per batch (32)")
    parser.add_argument("--max_length", type=int, help="maximum tokens per text; by default as in the training")
    args = parser.parse_intermixed_args(argv)
    if bool(args.inputs) == bool(args.input):
        raise error(
            "Give either inputs or `--input FILE`; `--input -` reads standard input.",
            inputs=args.inputs,
            input=args.input,
        )
    path = Path(args.output) if args.output else None
    if path is not None and path.suffix.lower() not in (".csv", ".jsonl"):
        raise error("`--output` must end in .csv or .jsonl.", output=path)
    check_least(args, batch_size=1, max_length=4)
    expected = noted(args.folder)
    pair = expected.get("pair", False)
    if pair != args.pair:
        trained_on = "pairs of texts: pass `--pair`" if pair else "single inputs: leave `--pair` out"
        raise error(f"The model was trained on {trained_on}.", pair=args.pair)
    inputs = iter(read_inputs(args, expected.get("columns", {})))
    from common.predictors import Predictor  # imports Paddle, which takes seconds

    predictor = Predictor(args.folder, args.max_length)
    batches = iter(lambda: list(itertools.islice(inputs, args.batch_size)), [])
    found = itertools.chain.from_iterable(map(predictor, batches))
    encoding = "utf-8" if path and path.suffix.lower() == ".jsonl" else "utf-8-sig"  # Excel needs the mark
    with open(path, "w", encoding=encoding, newline="") if path else contextlib.nullcontext(sys.stdout) as out:
        write(found, path, out)


def main(argv=None):
    """Run a command line, once Paddle is imported for a command line that is right."""
    try:
        say(sys.argv[1:] if argv is None else argv)
    except BrokenPipeError:  # as in `predict.py ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as problem:
        sys.exit("error: " + " ".join(str(problem).split()))


if __name__ == "__main__":
    main()
