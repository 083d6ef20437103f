"""The command line (`cli`), the memory calculator, and the models that both show."""

from typing import Any

import paddle

from .._checks import refusal

MODEL = "a PaddleNLP class such as BertForSequenceClassification (in its default size), a local folder, or a hub name"


def load_model(name: str) -> paddle.nn.Layer:
    """Build a PaddleNLP model whose parameters have shapes but take no memory."""
    try:
        import paddlenlp.transformers as nlp

        cls: Any = getattr(nlp, name, None)
        if not hasattr(cls, "config_class"):  # `bert` is a module there, and may be a folder here
            config = nlp.AutoConfig.from_pretrained(name)
            bare = type(config).__name__.replace("Config", "Model")  # PaddleNLP's own configs name no architecture
            cls = getattr(nlp, (config.architectures or [bare])[0])
        else:
            config = cls.config_class()
        try:
            with paddle.LazyGuard(), nlp.model_utils.no_init_weights():
                return cls(config)
        except Exception:  # a model that sets weights itself needs allocated parameters
            return cls(config)
    except Exception as error:  # a missing PaddleNLP, hubs and config files fail in many ways
        wrong = f"`--model` must be {MODEL}, with PaddleNLP installed ({type(error).__name__}: {error})."
        raise refusal(ValueError, wrong, **{"--model": name}) from error
