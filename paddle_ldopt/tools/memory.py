"""The bytes of parameters, gradients, float32 masters and optimizer state, and the command ``memory``."""

import argparse
import inspect
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from .._checks import checked_choice, checked_int, refusal, shown, unknown
from ..layers.map import LayerMap
from ..optimizers.options import REGISTRY, optimizer_class
from ..optimizers.states import rule_shape
from ..plots import rich_table
from . import MODEL, load_model

ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


def estimate(
    shapes: Mapping[str, Sequence[int]],
    optimizer: str,
    dtype: str = "bfloat16",
    multi_precision: bool = True,
    /,
    **options: Any,
) -> dict[str, int]:
    """Return the bytes in the memory of one process: of each kind, and "total".

    Activations and the buffers of a step are not counted. `shapes` are name -> shape of every parameter, `options`
    those of the optimizer. Gradients have the `dtype` of the parameters.

    Examples:
        >>> came = estimate(decoder(4096, 32), "came")
        >>> print(f"{came['total'] / 2**30:.1f} GiB, including {came['state'] / 2**30:.1f} GiB of state")
        75.3 GiB, including 25.1 GiB of state
    """
    optimizer_class(optimizer)  # raises for an unknown one
    info, size, state = REGISTRY[optimizer], sum(map(math.prod, shapes.values())), 0
    for name, value in options.items():
        if name not in info.options:
            raise ValueError(unknown(f"option of {shown(optimizer)}", name, value, info.options))
        options[name] = info.options[name].checked(value, name)
    multi_precision = options.get("multi_precision", multi_precision)
    item = ITEMSIZE[checked_choice(dtype, "dtype", ITEMSIZE)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # only matrices of blocks matter, not which layer is a guess
        layers = LayerMap.from_names(list(shapes)) if info.needs_layers else None
    for name, shape in shapes.items():
        if layers is not None:  # Muon updates the matrices of blocks, AdamW all others
            options["use_muon"] = None if layers.layer_of(name).is_block else False
        for kind, state_dtype in info.states(options, tuple(shape)).values():
            state += math.prod(rule_shape(kind, shape)) * ITEMSIZE[state_dtype or "float32"]
    masters = 4 * size if multi_precision and dtype != "float32" else 0
    held = {"parameters": size * item, "gradients": size * item, "masters": masters, "state": state}
    return {**held, "total": sum(held.values())}


def add_arguments(add: Callable[..., argparse.Action]) -> None:
    for name in inspect.signature(decoder).parameters:
        add(f"--{name}", type=int, help="size of a decoder of LLaMA's form")
    add("--model", help=MODEL)
    several = "optimizers (adamwdl), options after commas: came came,compression adafactor,scale_parameter=false"
    add("--optim", nargs="+", default=["adamwdl"], metavar="NAME[,OPTION...]", help=several)
    add("--dtype", choices=list(ITEMSIZE), default="bfloat16", help="type of parameters and gradients (bfloat16)")
    add("--no_multi_precision", action="store_true", help="train low-precision parameters without float32 masters")
    add("--json", action="store_true", help="print JSON instead of a table")


def show(options: argparse.Namespace) -> None:
    sizes = {name: getattr(options, name) for name in inspect.signature(decoder).parameters}
    given = {name: value for name, value in sizes.items() if value is not None}
    if bool(options.model) == bool(given) or (given and not {"hidden_size", "num_hidden_layers"} <= given.keys()):
        message = "Give either `--model`, or `--hidden_size` and `--num_hidden_layers`."
        raise refusal(ValueError, message, **{"--model": options.model, "shape": given})
    if options.model:
        named = load_model(options.model).named_parameters()
        shapes = {name: tuple(param.shape) for name, param in named if not param.stop_gradient}
    else:
        shapes = decoder(**{name: checked_int(value, f"--{name}", 1) for name, value in given.items()})
    uses = {}
    for text in options.optim:
        name, *words = text.split(",")
        try:
            own = {option: json.loads(value or "true") for option, _, value in (word.partition("=") for word in words)}
        except ValueError:
            message = "`--optim` must be a name with options such as compression, compression=false or beta1=0.9."
            raise refusal(ValueError, message, **{"--optim": text}) from None
        uses[text] = estimate(shapes, name, options.dtype, not options.no_multi_precision, **own)
    size = sum(map(math.prod, shapes.values()))
    if options.json:
        print(json.dumps({"size": size, "bytes": uses}, indent=1))
        return
    print(f"{size / 1e9:.3g} B parameters, {options.dtype}; GiB in one process")
    from rich.console import Console

    rows = [[kind, *(f"{use[kind] / 2**30:.3g}" for use in uses.values())] for kind in next(iter(uses.values()))]
    Console().print(rich_table(["GiB", *uses], rows))


def decoder(
    hidden_size: int,
    num_hidden_layers: int,
    vocab_size: int = 32000,
    intermediate_size: int = 0,
    num_attention_heads: int = 0,
    num_key_value_heads: int = 0,
) -> dict[str, tuple[int, ...]]:
    """Return name -> shape of a decoder of LLaMA's form: untied embedding and head, no biases.

    By default, the intermediate size is 8/3 of the hidden size, rounded up to a multiple of 256, and there is an
    attention head per 128 of the hidden size.
    """
    hidden, wide = hidden_size, intermediate_size or -(-hidden_size * 8 // 3 // 256) * 256
    heads = num_attention_heads or max(1, hidden // 128)
    kv = hidden * (num_key_value_heads or heads) // heads
    block = {"q_proj": (hidden, hidden), "k_proj": (hidden, kv), "v_proj": (hidden, kv), "o_proj": (hidden, hidden)}
    block |= {"gate_proj": (hidden, wide), "up_proj": (hidden, wide), "down_proj": (wide, hidden)}
    whole = {**block, "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    blocks = {f"layers.{i}.{name}": shape for i in range(num_hidden_layers) for name, shape in whole.items()}
    return {"embed_tokens": (vocab_size, hidden), **blocks, "norm": (hidden,), "lm_head": (hidden, vocab_size)}
