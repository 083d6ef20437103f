"""PaddleNLP models by name, without their weights."""

import os

import paddle

from ..._messages import refusal

MODEL = "a PaddleNLP class (BertForSequenceClassification: its default size), a local folder, or a hub name"


def load_model(name: str) -> paddle.nn.Layer:
    """Build a PaddleNLP model without its weights: parameters have shapes but take no memory.

    `name` is a class (built from its default config), a local folder or a hub name (only the config is read).
    ValueError: PaddleNLP is missing or lacks the model.
    """
    received = {"--model": name}
    try:
        import paddlenlp.transformers as nlp
    except ImportError as error:
        raise refusal(ValueError, f"`--model` needs PaddleNLP: pip install paddlenlp ({error}).", **received) from error
    cls = getattr(nlp, name, None) if name.isidentifier() else None
    if cls is not None:
        if getattr(cls, "config_class", None) is None:
            raise refusal(ValueError, "`--model` must be a model class.", **received)
        config = cls.config_class()
    else:
        try:
            config = nlp.AutoConfig.from_pretrained(name)
            bare = type(config).__name__.replace("Config", "Model")  # PaddleNLP's own configs name no architecture
            cls = getattr(nlp, (config.architectures or [bare])[0])
            if getattr(cls, "config_class", None) is None:
                raise ValueError("its config names neither an architecture nor a model type")
        except Exception as error:  # hubs and config files fail in many ways: the message has the cause
            kinds = "local folder" if os.path.isdir(name) else "PaddleNLP class, local folder or hub model"
            raise refusal(
                ValueError, f"`--model`: cannot load a {kinds} of this name ({error}).", **received
            ) from error
    try:
        with paddle.LazyGuard(), nlp.model_utils.no_init_weights():
            return cls(config)
    except Exception:  # a model that sets weights itself needs allocated parameters
        return cls(config)
