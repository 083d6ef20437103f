"""Fine-tune a pretrained vision transformer to classify images, each layer at its own rate (decay 0.65, as in BEiT).

    python recipes/image_classification.py
    python recipes/image_classification.py --data photos/ --model openai/clip-vit-base-patch32   # photos/<class>/*.jpg
    python recipes/image_classification.py --data datasets:cifar10 --model openai/clip-vit-base-patch32
    python recipes/image_classification.py --config recipes/configs/vit/image_classification.yaml
    python recipes/image_classification.py --resume_from_checkpoint runs/image_classification-20261121-140000

By default, a small transformer is first pretrained on the handwritten digits 0 to 4 of scikit-learn, and then
fine-tuned on a few images of the digits 5 to 9.
"""

import dataclasses
import functools
from typing import Optional

import common.fast_cpu  # noqa: F401 - before Paddle
import numpy as np
import paddle
from common import classification
from common.arguments import RecipeArguments, option, parse
from common.errors import error
from common.fine_tuning import entry_point, fine_tune
from common.image_data import collate, digits, encode, few, load_images
from common.pretrained import name_classes
from common.trainers import FineTuner
from paddlenlp.trainer import set_seed
from paddlenlp.transformers import CLIPVisionConfig
from paddlenlp.transformers.clip.modeling import CLIPPretrainedModel, CLIPVisionTransformer

from paddle_ldopt import AdamWDL

SMALL = {"image_size": 8, "patch_size": 2, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """PaddleNLP's training arguments."""

    recipe = "image_classification"
    metrics = classification.METRICS

    learning_rate: float = 3e-3
    num_train_epochs: float = 15
    early_stopping_patience: int = 5


@dataclasses.dataclass
class Options:
    """Model, data and encoding."""

    model: str = option("digits", "digits (a small model, pretrained first), a folder, or the hub name of a CLIP model")
    data: str = option("digits", "digits, a folder with one subfolder per class, paddlenlp:NAME, datasets:NAME")
    examples_per_class: Optional[int] = option(None, "training images per class; by default all, or 20 for digits")

    def __post_init__(self):
        if self.examples_per_class is None and self.data == "digits":
            self.examples_per_class = 20


class VisionClassifier(CLIPPretrainedModel):
    """The vision transformer of CLIP, with a head for classes."""

    config_class = CLIPVisionConfig

    def __init__(self, config):
        super().__init__(config)
        self.vision_model = CLIPVisionTransformer(config)
        self.classifier = paddle.nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, pixel_values):
        """Return the logits of images [rows, 3, size, size]."""
        return self.classifier(self.vision_model(pixel_values)[1])


@functools.cache
def pretrained_on_digits(seed):
    """Return the weights of a small transformer trained on the digits 0 to 4, without its head."""
    with paddle.utils.unique_name.guard():
        set_seed(seed)
        model = VisionClassifier(CLIPVisionConfig(**SMALL, num_attention_heads=4, num_labels=5))
        names = [str(digit) for digit in range(5)]
        data, draw = encode(digits(range(5)).train, names, SMALL["image_size"]), np.random.default_rng(seed)
        optimizer = AdamWDL(1e-3, parameters=model.parameters())
        for _ in range(8):
            order = draw.permutation(len(data))
            for first in range(0, len(data), 32):
                batch = collate([data[i] for i in order[first : first + 32]])
                labels = batch.pop("labels")
                paddle.nn.functional.cross_entropy(model(**batch), labels).backward()
                optimizer.step()
                optimizer.clear_grad()
        return {name: value.numpy() for name, value in model.vision_model.state_dict().items()}


def load_classifier(name, classes, seed):
    """Return a pretrained model with a new head."""
    if name == "digits":
        weights = pretrained_on_digits(seed)
        set_seed(seed)
        model = VisionClassifier(CLIPVisionConfig(**SMALL, num_attention_heads=4, num_labels=classes))
        model.vision_model.set_state_dict({key: paddle.to_tensor(value) for key, value in weights.items()})
        return model
    set_seed(seed)
    try:
        return VisionClassifier.from_pretrained(name, num_labels=classes, ignore_mismatched_sizes=True)
    except Exception as cause:  # OSError offline, RuntimeError for a bad file
        problem = f"The model cannot be loaded ({cause}). Accepted: digits, a folder, a hub name."
        raise error(problem, model=name) from cause


def build(args, options, parts):
    """Return a Trainer with a model for the rows, and the test rows as a data set."""
    names = sorted({name for rows in parts.each(list).values() for _, name in rows})
    if len(names) < 2:
        raise error(f"A classifier needs at least two classes; the images have {names}.", data=options.data)
    model = load_classifier(options.model, len(names), args.seed)
    name_classes(model, names)
    size = model.config.image_size
    data = parts.each(lambda rows: encode(rows, names, size))
    trainer = FineTuner(
        model=model,
        args=args,
        data_collator=collate,
        train_dataset=data["train"],
        eval_dataset=data["validation"],
        compute_metrics=classification.class_scores,
    )
    return trainer, data["test"]


def run(argv):
    """Run a command line."""
    options, args, argv = parse(argv, Options, Arguments)
    parts = load_images(options.data)
    if options.examples_per_class is not None:
        parts = few(parts, options.examples_per_class)
    print(parts.description, flush=True)
    trainer, test = build(args, options, parts)
    names = list(trainer.model.config.id2label.values())
    score = classification.majority_score(parts.test)
    fine_tune(trainer, test, score, options, argv, parts, classification.judge(names))


main = entry_point(run)

if __name__ == "__main__":
    main()
