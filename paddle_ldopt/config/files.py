"""Settings in JSON objects and in YAML files. A duplicate key is a ValueError."""

import functools
import json
from typing import Any

from .._checks import refusal
from .._files import YAML_EXPONENT, Path, checked_path, file_errors, unique_keys

_EXAMPLES = {  # last word of a setting's name -> a value
    "towers": '{"vision_model": 0.65}',
    "multipliers": '{"bias$": 2.0}',
    "rules": '{"lora_": "head"}',
    "optim_kwargs": '{"fused": false}',
}


def json_object(value: Any, name: str) -> dict[str, Any]:
    """Return the dict in an argument that is a dict, a JSON object in a string, or None for an empty dict."""
    content, why = value, ""
    if isinstance(value, str):
        try:
            content = json.loads(value, object_pairs_hook=unique_keys)
        except (RecursionError, ValueError) as error:
            why = f" ({error})"
    if content is not None and not isinstance(content, dict):
        example = next((example for end, example in _EXAMPLES.items() if name.endswith(end)), '{"min_lr": 1e-6}')
        raise refusal(ValueError, f"`{name}` must be a JSON object such as '{example}'{why}.", **{name: value})
    return dict(content or {})


def json_argument(args: Any, name: str) -> dict[str, Any]:
    """Return the dict in a Trainer's argument, which is a JSON object; empty if the Trainer lacks the argument."""
    return json_object(getattr(args, name, None), name)


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file, in which 1e-5 is a number; raise ValueError like `read_json`."""
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's loader with the numbers of YAML 1.2."""

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        read = functools.partial(loader.construct_object, deep=True)
        return unique_keys([(read(key), read(value)) for key, value in node.value])

    Loader.add_implicit_resolver("tag:yaml.org,2002:float", YAML_EXPONENT, list("-+.0123456789"))
    Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    with open(checked_path(path), encoding="utf-8") as file, file_errors(path, "This YAML"):
        try:
            return yaml.load(file, Loader)
        except yaml.YAMLError as error:
            raise ValueError(str(error)) from error
