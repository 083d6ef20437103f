"""Fine-tune a pretrained image model to classify images, each layer at its own learning rate.

    python recipes/image_classification.py
    python recipes/image_classification.py --data photos/ --model resnet50            # photos/<class>/*.jpg
    python recipes/image_classification.py --data photos/ --model resnet18 --weights resnet18.pdparams
    python recipes/image_classification.py --data datasets:cifar10 --model openai/clip-vit-base-patch32
    python recipes/image_classification.py --config recipes/configs/vit/image_classification.yaml

By default, a small transformer is first pretrained on the handwritten digits 0 to 4 of scikit-learn, and then
fine-tuned on a few images of the digits 5 to 9. Your own images need a `--model`. Images are opened when they are
needed, resized to the model's size, and in the training cropped at random and mirrored.
"""

import dataclasses
import functools
import zlib
from typing import Optional

import common.start  # noqa: F401 - before Paddle
import numpy as np
import paddle
from common import classification, error
from common.arguments import RecipeArguments, option, parse
from common.fine_tuning import fine_tune
from common.image_data import CLIP, IMAGENET, Images, collate, digits, load_images
from common.pretrained import name_classes
from common.start import entry_point
from common.trainers import FineTuner
from paddle.vision import models
from paddlenlp.trainer import set_seed
from paddlenlp.transformers import CLIPVisionConfig
from paddlenlp.transformers.clip.modeling import CLIPPretrainedModel, CLIPVisionTransformer

from paddle_ldopt import AdamWDL

SMALL = {"image_size": 8, "patch_size": 2, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """PaddleNLP's training arguments."""

    recipe = "image_classification"
    metrics = ("accuracy", "macro_f1", "matthews", "loss")

    learning_rate: float = 1e-3
    num_train_epochs: float = 15
    early_stopping_patience: int = 5


@dataclasses.dataclass
class Options:
    """Model and data."""

    model: Optional[str] = option(None, "a model of paddle.vision (resnet50), a CLIP model's folder or name, or digits")
    weights: Optional[str] = option(None, "a .pdparams file for paddle.vision, or none (random); by default a download")
    data: str = option("digits", "digits, a folder with one subfolder per class, paddlenlp:NAME, datasets:NAME")
    flip: bool = option(True, "mirror half of the training images, except digits; False for letters and signs")

    def __post_init__(self):
        if self.data == "digits":
            self.model, self.flip = self.model or "digits", False


class VisionClassifier(CLIPPretrainedModel):
    """The vision transformer of CLIP, with a head for classes."""

    config_class = CLIPVisionConfig

    def __init__(self, config):
        super().__init__(config)
        self.vision_model = CLIPVisionTransformer(config)
        self.classifier = paddle.nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, pixel_values):
        return self.classifier(self.vision_model(pixel_values)[1])


class VisionModel(paddle.nn.Layer):
    """A model of paddle.vision that takes the batches of this recipe."""

    def __init__(self, name, classes, weights):
        super().__init__()
        try:
            self.network = getattr(models, name)(pretrained=weights is None, num_classes=classes)
        except Exception as cause:  # no network
            advice = "give a .pdparams file as `--weights`, or `--weights none` for random weights"
            raise error(f"The weights cannot be downloaded ({cause}): {advice}.", model=name) from cause
        if weights not in (None, "none"):
            state, own = paddle.load(weights), self.network.state_dict()
            fit = {key: value for key, value in state.items() if key in own and list(value.shape) == own[key].shape}
            if not fit:
                raise error("No weight of this file fits the model.", weights=weights, model=name)
            self.network.set_state_dict(fit)
            print(f"new weights, not in {weights}: {', '.join(sorted(own.keys() - fit.keys())) or 'none'}.")
        self.image_size = 299 if name == "inception_v3" else 224

    def forward(self, pixel_values):
        return self.network(pixel_values)


class ImageTuner(FineTuner):
    """The Trainer: larger images are cropped to `size` at a random place and, with `flip`, mirrored at random."""

    size, flip = 0, False

    def compute_loss(self, model, inputs, return_outputs=False):
        """Return the loss on cropped images; what is drawn depends on the seed, the step and the images alone."""
        pixels = inputs["pixel_values"]
        margin = pixels.shape[-1] - self.size
        if margin or (self.flip and model.training):
            pixels = pixels.numpy()
            draw = np.random.default_rng([self.args.seed, self.state.global_step, zlib.crc32(pixels.tobytes())])
            cropped = np.empty([*pixels.shape[:2], self.size, self.size], "float32")
            places = draw.integers(margin + 1, size=[len(pixels), 2])
            for image, into, (top, left) in zip(pixels, cropped, places):
                part = image[:, top : top + self.size, left : left + self.size]
                into[:] = part[:, :, ::-1] if self.flip and draw.random() < 0.5 else part
            inputs["pixel_values"] = paddle.to_tensor(cropped)
        return super().compute_loss(model, inputs, return_outputs)


@functools.cache
def pretrained_on_digits(seed):
    """Return the weights of a small transformer trained on the digits 0 to 4, without its head."""
    with paddle.utils.unique_name.guard():
        set_seed(seed)
        model = VisionClassifier(CLIPVisionConfig(**SMALL, num_attention_heads=4, num_labels=5))
        names = [str(digit) for digit in range(5)]
        data, draw = list(Images(digits(range(5)).train, names, SMALL["image_size"])), np.random.default_rng(seed)
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


def load_classifier(options, names, seed):
    """Return a pretrained model with a new head, the size of its images, and how their pixels are scaled."""
    weights = pretrained_on_digits(seed) if options.model == "digits" else {}
    set_seed(seed)
    if options.model in vars(models) and options.model[0].islower():
        model = VisionModel(options.model, len(names), options.weights)
        return model, model.image_size, IMAGENET
    if options.model == "digits":
        model = VisionClassifier(CLIPVisionConfig(**SMALL, num_attention_heads=4, num_labels=len(names)))
        model.vision_model.set_state_dict({key: paddle.to_tensor(value) for key, value in weights.items()})
    else:
        try:
            model = VisionClassifier.from_pretrained(options.model, num_labels=len(names), ignore_mismatched_sizes=True)
        except Exception as cause:  # OSError offline, RuntimeError for a bad file
            accepted = "a model of paddle.vision, a folder, a hub name, digits"
            raise error(f"The model cannot be loaded ({cause}). Accepted: {accepted}.", model=options.model) from cause
    name_classes(model, names)
    return model, model.config.image_size, CLIP


def saved_model(folder, noted):
    if noted.model in vars(models):
        model = VisionModel(noted.model, len(noted.classes), "none")
        model.set_state_dict(paddle.load(f"{folder}/model_state.pdparams"))
        return model, IMAGENET
    return VisionClassifier.from_pretrained(folder), CLIP


def build(args, options, parts):
    names = sorted({name for rows in parts.each(list).values() for _, name in rows})
    if len(names) < 2:
        raise error(f"A classifier needs at least two classes; the images have {names}.", data=options.data)
    model, size, norm = load_classifier(options, names, args.seed)
    larger = size if options.model == "digits" else size * 8 // 7
    sizes = {"train": larger, "validation": size, "test": size}
    data = {split: Images(getattr(parts, split), names, sizes[split], norm) for split in sizes}
    trainer = ImageTuner(model, args, data, collate)
    trainer.size, trainer.flip = size, options.flip
    return trainer, names


def run(argv):
    options, args, argv = parse(argv, Options, Arguments)
    parts = load_images(options.data)
    trainer, names = build(args, options, parts)
    noted = {"classes": names, "size": trainer.size}
    fine_tune(trainer, classification.majority_score(parts.test), options, argv, parts, noted)


main = entry_point(run)

if __name__ == "__main__":
    main()
