"""The first import of a recipe, before Paddle: a fast processor path, wrong arguments refused, the entry point.

main = entry_point(run)  # run(argv); errors in the input are printed in one line

The imports of Paddle and PaddleNLP take seconds. Before them, this module refuses unknown arguments, wrong numbers and
missing paths of a recipe's command line. It reads the names of the arguments from the sources, without importing them.
"""

import ast
import contextlib
import difflib
import importlib.util
import os
import shlex
import signal
import sys
import threading
from pathlib import Path

from . import RECIPES
from .errors import error, refuse

HUBS = ("paddlenlp", "datasets")
NUMBERS = {"int": int, "float": float}
MEANT = {"lr": "learning_rate", "batch_size": "per_device_train_batch_size"}  # which no spelling is near to


def use_avx2(cpuinfo="/proc/cpuinfo"):
    """Set `MKL_DEBUG_CPU_TYPE` if the processor is an AMD with AVX2; return whether it was set.

    By default MKL takes its slowest path on processors that are not Intel's. With AVX2 a training step of MiniLM takes
    0.4 of the time (16 x 64 tokens, AMD EPYC, 2 cores, 2026-11-21: 1.7 s against 4.0 s).
    """
    try:
        text = Path(cpuinfo).read_text(encoding="utf-8")
    except OSError:  # not Linux
        return False
    if "AuthenticAMD" not in text or " avx2" not in text or "MKL_DEBUG_CPU_TYPE" in os.environ:
        return False
    os.environ["MKL_DEBUG_CPU_TYPE"] = "5"
    return True


def end_at_once(number, frame=None):
    """End the process on a signal outside of the training, where there is nothing to save."""
    os.write(2, b"\nended by a signal: nothing was left to save\n")
    os._exit(128 + number)


def fields_of(source, classes=None):
    """Return name -> (annotation, default or None) of the annotated fields of classes in a Python source."""
    found = {}
    for node in ast.parse(Path(source).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and (classes is None or node.name in classes):
            for item in node.body:
                if isinstance(item, ast.AnnAssign):
                    found[item.target.id] = (ast.unparse(item.annotation), item.value)
    return found


def arguments_of(script):
    """Return the fields of all arguments of a recipe."""
    found, ours, text = {}, Path(__file__).with_name("arguments.py"), Path(script).read_text(encoding="utf-8")
    if "RecipeArguments" in text:
        package, theirs = (Path(importlib.util.find_spec(name).origin).parent for name in ("paddle_ldopt", "paddlenlp"))
        for path in (theirs / "trainer/training_args.py", package / "config.py", package / "trainer/arguments.py"):
            found.update(fields_of(path))
        found.update(fields_of(ours, ("RecipeArguments",)))
    if "FileOptions" in text:
        found.update(fields_of(ours, ("FileOptions",)))
    return {**found, **fields_of(script, ("Options", "Arguments"))}


def check(script, argv):
    """Raise ValueError for arguments of a recipe that are unknown, no number, too low, or name a missing path."""
    known, given = arguments_of(script), list(given_in(argv))
    config = dict(given).get("config")
    if config:
        given = [*((n, None if isinstance(v, (list, dict)) else v) for n, v in config_of(config).items()), *given]
    refuse(problem for name, value in given if (problem := _problem(name, value, known)))
    values = dict(given)
    if "arguments" in known and values.get("arguments"):  # a sweep has those of a recipe
        recipe = Path(script).with_name(f"{values.get('recipe') or known['recipe'][1].args[0].value}.py")
        if recipe.is_file():  # the sweep refuses other names
            check(recipe, shlex.split(values["arguments"]))


def given_in(argv):
    """Yield the name and the value (None without one) of each argument of a command line."""
    for word, after in zip(argv, [*argv[1:], "--"]):
        name, equals, value = word[2:].partition("=")
        if word.startswith("--") and " " not in name:  # not `--arguments "--data reviews.csv"`
            yield name, value if equals else None if after.startswith("--") and " " not in after else after


def config_of(path):
    """Return the settings of a YAML file; "1e-3" stays a string, which an argument reads as a number."""
    import yaml

    if not Path(path).is_file():
        raise error("No such file or directory.", config=path)
    try:
        settings = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        raise error(f"This is not a YAML file: {' '.join(str(cause).split())}.", config=path) from cause
    if not isinstance(settings, dict):
        raise error("A config must hold `name: value` lines.", config=path)
    empty = [name for name, value in settings.items() if value is None]
    refuse(error(f"`{name}` needs a value: leave it out for its default.", **{name: None}) for name in empty)
    return {str(name): value for name, value in settings.items()}


def _problem(name, value, known):
    """Return an error for an argument, or None."""
    if name in ("help", "help-all", "help_all", "config"):
        return None
    if name not in known:
        off = name.startswith("no_") and known.get(name[3:], ("",))[0] == "bool"
        return None if off else _unknown(name, known)
    kind, default = known[name]
    kind = kind.removeprefix("Optional[").removesuffix("]")
    if kind in NUMBERS and value is not None:
        try:
            number = NUMBERS[kind](value)
        except ValueError:
            return error(f"`{name}` must be a number ({kind}).", **{name: value})
        least = [word.value.value for word in getattr(default, "keywords", ()) if word.arg == "least"]
        if least and number < least[0]:
            return error(f"`{name}` must be {least[0]} or more.", **{name: number})
    if name == "data" and value is not None:
        own = default.args[0].value if isinstance(default, ast.Call) else None
        hub, _, data_set = str(value).partition(":")
        if str(value) != own and not (hub in HUBS and data_set) and not Path(str(value)).exists():
            accepted = ", ".join(filter(None, (own, "a file, a folder", *(f"{hub}:NAME" for hub in HUBS))))
            return error(f"The source does not exist. Accepted: {accepted}.", data=value)
    if name == "resume_from_checkpoint" and value is not None and not Path(str(value)).exists():
        return error("There is no complete checkpoint to resume from.", resume_from_checkpoint=value)
    if name == "model" and value and str(value)[0] in "./~" and not Path(str(value)).exists():
        return error("This folder does not exist.", model=value)
    return None


def _unknown(name, known):
    """Return an error for an unknown argument, with the nearest known one."""
    near = [MEANT[name]] if MEANT.get(name) in known else difflib.get_close_matches(name, known, 1, 0.4)
    nearest = "".join(f"; the nearest is '--{one}'" for one in near)
    return error(f"'--{name}' is not a known argument{nearest}.", argument=name)


@contextlib.contextmanager
def errors_in_one_line():
    """Exit with an error in the input in one line."""
    try:
        yield
    except BrokenPipeError:  # as in `predict.py ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as problem:
        sys.exit("error: " + " ".join(str(problem).split()))


def entry_point(run):
    """Return `main(argv=None)`, which runs a command line; Ctrl-C and SIGTERM end it at once outside of a training."""

    def main(argv=None):
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, end_at_once) for number in numbers}
        try:
            with errors_in_one_line():
                run(sys.argv[1:] if argv is None else argv)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    return main


def start():
    """Prepare the process of a recipe; exit with an error if its command line is wrong."""
    use_avx2()
    script = Path(getattr(sys.modules["__main__"], "__file__", None) or "").resolve()
    if script.parent == RECIPES and script.stem != "predict":  # which has a parser of its own
        with errors_in_one_line():
            check(script, sys.argv[1:])
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        import paddle

        paddle.disable_signal_handler()  # on SIGTERM it prints a traceback of C++
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


start()
