"""The first import of a recipe: wrong arguments, told by the sources, are refused before Paddle's slow import."""

import argparse
import ast
import codecs
import contextlib
import difflib
import importlib.util
import itertools
import json
import os
import re
import shlex
import signal
import sys
from pathlib import Path

from . import RECIPES, SCRIPT, error

RESUMED = "resume_from_checkpoint"
HUBS, ON_HUB = "paddlenlp:NAME, datasets:NAME", re.compile("(paddlenlp|datasets):.")
NUMBERS = {"int": int, "float": float}
TRUTHS = ("yes", "true", "t", "y", "1", "no", "false", "f", "n", "0")  # of the Trainer's parser
CHOICES = {  # valid values, known without Paddle
    **dict.fromkeys(("evaluation_strategy", "save_strategy", "logging_strategy"), ("no", "steps", "epoch")),
    "optim": ("adamwdl", "came", "lamb", "adafactor", "adamweightdecay", "muon")
    + ("adamw", "adamw_mini", "adamw_custom", "adamw_16bit_moment"),  # PaddleNLP's own
    "lr_scheduler_type": ("constant", "constant_with_warmup", "linear", "polynomial", "inverse_sqrt", "cosine")
    + ("cosine_with_restarts", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay")
    + ("cool_down", "reduce_lr_on_plateau"),
    "kind": ("auto", "classes", "labels", "scores"),
    "recipe": ("image_classification", "language_model_sft", "masked_lm_pretraining", "seq2seq")
    + ("text_classification", "token_classification"),
}
LEAST = {"early_stopping_patience": 1, "num_train_epochs": 0, "logging_steps": 1, "gradient_accumulation_steps": 1}
LEAST |= {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1}  # of the Trainer's arguments
MOST = {"layerwise_lr_decay": 1, "warmup_ratio": 1}
OF_SWEEP = ("learning_rate", "layerwise_lr_decay", "seed", "output_dir", "resume_from_checkpoint")
MEANT = {"lr": "learning_rate", "batch_size": "per_device_train_batch_size"}  # which no spelling is near to


def use_avx2(cpuinfo="/proc/cpuinfo"):
    """Keep MKL from its slowest path on AMD, where a step of MiniLM takes 0.4 of the time with AVX2 (EPYC, 2 cores)."""
    text = Path(cpuinfo).read_text(encoding="utf-8") if Path(cpuinfo).exists() else ""  # not Linux
    if "AuthenticAMD" in text and " avx2" in text:
        os.environ.setdefault("MKL_DEBUG_CPU_TYPE", "5")


def end_at_once(number, frame=None):
    os.write(2, b"\nended by a signal: nothing was left to save\n")
    os._exit(128 + number)


def fields_of(source, classes=None):
    """Return name -> (annotation, default or None) of the annotated fields of classes in a Python source."""
    found = {}
    for node in ast.parse(Path(source).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and (classes is None or node.name in classes):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and "ClassVar" not in ast.unparse(item.annotation):
                    found[item.target.id] = (ast.unparse(item.annotation), item.value)
    return found


def arguments_of(script):
    found, text = {}, Path(script).read_text(encoding="utf-8")
    if "RecipeArguments" in text:
        package, theirs = (Path(importlib.util.find_spec(name).origin).parent for name in ("paddle_ldopt", "paddlenlp"))
        theirs = (theirs / "trainer/training_args.py", package / "config.py", package / "trainer/arguments.py")
        for path in (*theirs, Path(__file__).with_name("arguments.py")):
            found.update(fields_of(path))
    helps = dict.fromkeys(("help", "help-all", "help_all"), ("", None))
    return {**found, **fields_of(script, ("Options", "Arguments")), **helps}


def check(script, argv):
    """Raise ValueError for arguments of a recipe that are unknown, no valid value, too low, or name a missing path."""
    argv = with_config(argv)
    known, given = arguments_of(script), dict(given_in(argv))
    metrics = re.search(r"\n    metrics = (\(.*\))", Path(script).read_text(encoding="utf-8"))
    choices = {**CHOICES, **({"metric_for_best_model": ast.literal_eval(metrics[1])} if metrics else {})}
    stray = list(itertools.takewhile(lambda word: not word.startswith("--"), argv))
    stray += [word for name, values in given.items() if "ist[" not in known.get(name, [""])[0] for word in values[1:]]
    if stray:
        raise error("Arguments begin with `--`.", arguments=stray)
    first = {name: values[0] for name, values in given.items() if values}
    for name, values in given.items():
        for value in values or [None]:
            _check_value(name, value, known, choices)
    _check_machine(given, first)
    if "weights" in known and first.get("data", "digits") != "digits" and not {"model", RESUMED} & set(first):
        raise error("Images of your own need a model, such as `--model resnet50`.", data=first["data"], model=None)
    if _is_on("compare", given) and (RESUMED in given or float(first.get("layerwise_lr_decay", 0)) == 1):
        problem = "`--compare` needs a `--layerwise_lr_decay` below 1; to go on, give its `--output_dir` again."
        raise error(problem, **{name: first[name] for name in ("layerwise_lr_decay", RESUMED) if name in first})
    if _is_on("compare", given) and "learning_rate" in given:
        raise error("`--compare` takes `--compare_learning_rates` instead.", learning_rate=first["learning_rate"])
    if "arguments" in known and "arguments" in first:  # a sweep has those of a recipe
        recipe, argv = first.get("recipe") or known["recipe"][1].args[0].value, shlex.split(first["arguments"])
        check(Path(script).with_name(f"{recipe}.py"), argv)
        if ours := [name for name in OF_SWEEP if name in dict(given_in(argv))]:
            instead = "give `--learning_rates`, `--decays`, `--seeds`, `--first_seed` or the sweep's own `--output_dir`"
            raise error(f"The sweep sets {' and '.join(ours)} of each run: {instead}.", arguments=first["arguments"])


def _is_on(name, given):
    return name in given and (given[name] or ["true"])[0].lower() in TRUTHS[:5]


def given_in(argv):
    starts = [i for i, word in enumerate(argv) if word.startswith("--") and " " not in word.partition("=")[0]]
    for i, end in zip(starts, [*starts[1:], len(argv)]):  # the value in `--arguments "--data a.csv"` has a space
        name, equals, value = argv[i][2:].partition("=")
        yield name, [value] if equals else argv[i + 1 : end]


def take(argv, name):
    """Return the value of an argument in a command line (None without it), and the line without the argument."""
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(f"--{name}")
    given, rest = finder.parse_known_args(argv)
    return getattr(given, name), rest


def with_config(argv):
    """Return a command line with the settings of its YAML file, "1e-3" as a string, before its own arguments."""
    import yaml

    path, rest = take(argv, "config")
    if path is None:
        return argv
    try:
        settings = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as cause:
        raise error(f"This is not a YAML file: {' '.join(str(cause).split())}.", config=path) from cause
    if not isinstance(settings, dict):
        raise error("A config must hold `name: value` lines.", config=path)
    first = []
    for name, value in settings.items():
        if value is None:
            raise error(f"`{name}` needs a value: leave it out for its default.", **{name: None})
        if isinstance(value, list):
            first += [f"--{name}", *map(str, value)]
        else:  # in one word, because a value may begin with --
            first.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return [*first, *rest]


def _devices():
    source = Path(importlib.util.find_spec("paddle").origin).with_name("version") / "__init__.py"
    found = dict(re.findall(r"^(\w+)_version *= '(\d.*)'", source.read_text(encoding="utf-8"), re.M))
    return ["cpu", *(device for device, name in (("gpu", "cuda"), ("gpu", "hip"), ("xpu", "xpu_xre")) if name in found)]


def _check_machine(given, first):
    installed = _devices()
    device = first.get("device", installed[-1])
    plugins = importlib.util.find_spec("paddle_custom_device") or os.environ.get("CUSTOM_DEVICE_ROOT")
    if not plugins:  # which bring other devices
        if device.partition(":")[0] not in installed:
            raise error(f"This Paddle has no {device.upper()} support: leave `--device` out.", device=device)
        for name in ("fp16", "bf16", "float16"):
            if _is_on(name, given) and device.startswith("cpu"):
                raise error(f"`--{name}` needs a GPU: leave it out on a CPU.", **{name: True}, device=device)
    for name in ("tensor_parallel_degree", "pipeline_parallel_degree", "sharding_parallel_degree"):
        if int(first.get(name, 1)) > int(os.environ.get("PADDLE_TRAINERS_NUM", 1)):
            launch = "start the recipe with `python -m paddle.distributed.launch`"
            raise error(f"`--{name}` exceeds the number of processes: {launch}.", **{name: int(first[name])})


def _check_value(name, value, known, choices):
    if name not in known and not (name.startswith("no_") and known.get(name[3:], ("",))[0] == "bool"):
        near = [MEANT[name]] if MEANT.get(name) in known else difflib.get_close_matches(name, known, 1, 0.4)
        nearest = "".join(f"; the nearest is '--{one}'" for one in near)
        raise error(f"'--{name}' is not a known argument{nearest}.", argument=name)
    if name not in known or value is None:
        return
    kind, default = known[name]
    kind = re.sub(r"(Optional|list)\[(\w+)\]", r"\2", kind)
    if kind in NUMBERS:
        try:
            number = NUMBERS[kind](value)
        except ValueError:
            raise error(f"`--{name}` must be a number ({kind}).", **{name: value}) from None
        own = (word.value.value for word in getattr(default, "keywords", ()) if word.arg == "least")
        least = next(own, LEAST.get(name, number))
        if number < least:
            raise error(f"`--{name}` must be {least} or more.", **{name: number})
        if number > MOST.get(name, number):
            raise error(f"`--{name}` must be {MOST[name]} or less.", **{name: number})
    if kind == "bool" and value.lower() not in TRUTHS:
        raise error(f"`--{name}` must be true or false.", **{name: value})
    if value not in choices.get(name, (value,)):
        raise error(f"`--{name}` must be one of {', '.join(choices[name])}.", **{name: value})
    if name == "data" and not Path(value).exists() and not ON_HUB.match(value):
        own, accepted = (text.value for text in default.args)
        if value != own:
            raise error(f"The source does not exist. Accepted: {accepted}.", data=value)
    if name == RESUMED and not any((*Path(value).glob("checkpoint-*"), *Path(value).glob("trainer_state.json"))):
        raise error("There is no complete checkpoint to resume from.", resume_from_checkpoint=value)
    local = value.startswith((".", "/", "~")) if name == "model" else name == "weights" and value != "none"
    if local and not Path(value).exists():
        raise error("There is no such file or folder.", **{name: value})
    if name == "encoding":
        try:
            codecs.lookup(value)
        except LookupError:
            raise error("Python does not know this encoding.", encoding=value) from None


@contextlib.contextmanager
def errors_in_one_line():
    try:
        yield
    except BrokenPipeError:  # as in `predict.py ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError) as problem:
        sys.exit("error: " + " ".join(str(problem).split()))


def entry_point(run):
    """Return `main(argv=None)`, which runs a command line; errors in its input are one line."""

    def main(argv=None):
        for number in (signal.SIGINT, signal.SIGTERM) if SCRIPT.parent == RECIPES else ():
            signal.signal(number, end_at_once)  # PaddleNLP's import resets it
        with errors_in_one_line():
            run(sys.argv[1:] if argv is None else argv)

    return main


def start():
    use_avx2()
    if SCRIPT.parent == RECIPES and SCRIPT.stem != "predict":  # which has a parser of its own
        with errors_in_one_line():
            check(SCRIPT, sys.argv[1:])
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        import paddle

        paddle.disable_signal_handler()  # on SIGTERM it prints a traceback of C++
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


start()
