"""Fine-tune a pretrained image model to classify images, each layer at its own learning rate.

    python recipes/image_classification.py
    python recipes/image_classification.py --data photos/ --model resnet50            # photos/<class>/*.jpg
    python recipes/image_classification.py --data datasets:cifar10 --model openai/clip-vit-base-patch32

By default, a small transformer is pretrained on the digits 0 to 4 of scikit-learn and fine-tuned on a few images of 5
to 9. Your own images need a `--model`. They are resized, and in the training cropped at random and mirrored.
"""

import dataclasses
import functools
import hashlib
import zlib
from pathlib import Path
from typing import Optional

import common.start  # noqa: F401 - before Paddle
import numpy as np
import paddle
from common import classification, error
from common.arguments import RecipeArguments, option, parse
from common.fine_tuning import FineTuner, fine_tune
from common.pretrained import name_classes
from common.rows import STEMS, deal, first_of_each, load_parts
from common.start import entry_point
from paddle.vision import models
from paddlenlp.trainer import set_seed
from paddlenlp.transformers import CLIPVisionConfig
from paddlenlp.transformers.clip.modeling import CLIPPretrainedModel, CLIPVisionTransformer
from PIL import Image, ImageOps
from sklearn.datasets import load_digits

from paddle_ldopt import AdamWDL

# mean and deviation of the training pixels of CLIP and of ImageNet
CLIP = ((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
SMALL = {"image_size": 8, "patch_size": 2, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4}


@dataclasses.dataclass
class Arguments(RecipeArguments):
    """The recipe's own arguments and PaddleNLP's."""

    metrics = ("accuracy", "macro_f1", "matthews", "loss")
    model: Optional[str] = option(None, "a model of paddle.vision (resnet50), a CLIP model's folder or name, or digits")
    weights: Optional[str] = option(None, "a .pdparams file for paddle.vision, or none (random); by default a download")
    data: str = option("digits", "digits, a folder with one subfolder per class, paddlenlp:NAME, datasets:NAME")
    flip: bool = option(True, "mirror half of the training images, except digits; False for letters and signs")
    learning_rate: float = 1e-3
    num_train_epochs: float = 15
    early_stopping_patience: int = 5

    def __post_init__(self):
        if self.data == "digits":
            self.model, self.flip = self.model or "digits", False
        super().__post_init__()


def digits(wanted):
    found = load_digits()
    rows = [(np.uint8(image * 15), str(name)) for image, name in zip(found.images, found.target) if name in wanted]
    return deal(rows, lambda row: str(row[0].tolist()), "Handwritten digits of 8 x 8 pixels")


def folder_rows(path, notes):
    """Return [(file, class), ...] of a folder with a subfolder for each class; drop files that are no whole images."""
    files = [file for file in sorted(path.glob("[!.]*/*")) if file.name[0] != "."]  # also folders, which are dropped
    rows, dropped = [], []
    for file in files:
        try:
            with Image.open(file) as opened:
                opened.draft("RGB", (8, 8))  # decodes a JPEG in a third of the time
                upright(opened)
            rows.append((file, file.parent.name))
        except Exception:  # each format has errors of its own
            dropped.append((file.relative_to(path), "readable image"))
    if not rows:
        raise error("There are no images that can be read in a subfolder for each class of a folder.", data=path)
    notes.drop(dropped, len(files), path)
    return rows


def upright(opened):
    """Return an image in RGB, turned as its camera was held."""
    image = ImageOps.exif_transpose(opened)
    if image.mode.startswith("I"):  # 16 bits, which `convert` would clip
        image = Image.fromarray((np.asarray(image) // 257).astype("uint8"))
    return image.convert("RGB")


def hub_images(data, split, notes):
    image, label = (next((n for n in names if n in data[0]), None) for names in (("image", "img"), ("label", "labels")))
    if image is None or label is None:
        raise error("The columns `label` and `image` or `img` are required.", split=split, has=list(data[0]))
    notes.rows += len(data)
    every = [(row[image], str(row[label])) for row in data]
    return [(np.array(upright(x) if isinstance(x, Image.Image) else x), name) for x, name in every]


def split_folders(path):
    """Return split -> folder of the train, dev and test folders in a folder, or of the folder alone."""
    found = {split: path / stem for split, stems in STEMS.items() for stem in stems if (path / stem).is_dir()}
    return found if "train" in found else {"train": path}


def load_images(source):
    def key(row):
        return hashlib.sha256(row[0].read_bytes() if isinstance(row[0], Path) else row[0].tobytes()).hexdigest()

    def few_digits():
        parts = digits(range(5, 10))
        return dataclasses.replace(parts, train=first_of_each(sorted(parts.train, key=lambda row: row[1]), 20))

    how = {"own": {"digits": few_digits}, "find": split_folders, "labels": ("label", "labels")}
    return load_parts(source, read=folder_rows, rows_of=hub_images, key=key, **how)


class Images:
    """A data set of pixels [3, size, size] and numbers of classes; whole images, resized to a square."""

    def __init__(self, rows, names, size, norm=CLIP):
        self.rows, self.names, self.size, self.norm = rows, names, size, norm

    def __len__(self):
        return len(self.rows)

    def score(self, prediction):
        return classification.class_scores(prediction.predictions, prediction.label_ids)

    def judge(self, logits, labels):
        return classification.judge(logits, labels, self.names, self.rows)

    def __getitem__(self, index):
        image, name = self.rows[index]
        try:
            with Image.open(image) if isinstance(image, Path) else Image.fromarray(image) as opened:
                pixels = np.asarray(upright(opened).resize((self.size, self.size)), "float32") / 255
        except Exception as cause:
            raise error(f"The image cannot be read ({cause}).", image=image) from cause
        pixels = ((pixels - self.norm[0]) / self.norm[1]).astype("float32").transpose(2, 0, 1)
        return {"pixel_values": pixels, "labels": self.names.index(name)}


def collate(rows):
    return {name: paddle.to_tensor(np.stack([row[name] for row in rows])) for name in rows[0]}


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

    size = 0

    def compute_loss(self, model, inputs, return_outputs=False):
        """Return the loss on cropped images; what is drawn depends on the seed, the step and the images alone."""
        pixels = inputs["pixel_values"]
        margin = pixels.shape[-1] - self.size
        if margin or (self.args.flip and model.training):
            pixels = pixels.numpy()
            draw = np.random.default_rng([self.args.seed, self.state.global_step, zlib.crc32(pixels.tobytes())])
            cropped = np.empty([*pixels.shape[:2], self.size, self.size], "float32")
            places = draw.integers(margin + 1, size=[len(pixels), 2])
            for image, into, (top, left) in zip(pixels, cropped, places):
                part = image[:, top : top + self.size, left : left + self.size]
                into[:] = part[:, :, ::-1] if self.args.flip and draw.random() < 0.5 else part
            inputs["pixel_values"] = paddle.to_tensor(cropped)
        return super().compute_loss(model, inputs, return_outputs)


@functools.cache
def pretrained_on_digits(seed):
    """Return the weights of a small transformer trained on the digits 0 to 4, without its head."""
    with paddle.utils.unique_name.guard():
        set_seed(seed)
        model = VisionClassifier(CLIPVisionConfig(**SMALL, num_attention_heads=4, num_labels=5))
        data, draw = list(Images(digits(range(5)).train, [*"01234"], SMALL["image_size"])), np.random.default_rng(seed)
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


def load_classifier(args, names):
    """Return a pretrained model with a new head, the size of its images, and how their pixels are scaled."""
    weights = pretrained_on_digits(args.seed) if args.model == "digits" else {}
    set_seed(args.seed)
    if args.model in vars(models) and args.model[0].islower():
        model = VisionModel(args.model, len(names), args.weights)
        return model, model.image_size, IMAGENET
    if args.model == "digits":
        model = VisionClassifier(CLIPVisionConfig(**SMALL, num_attention_heads=4, num_labels=len(names)))
        model.vision_model.set_state_dict({key: paddle.to_tensor(value) for key, value in weights.items()})
    else:
        try:
            model = VisionClassifier.from_pretrained(args.model, num_labels=len(names), ignore_mismatched_sizes=True)
        except Exception as cause:  # OSError offline, RuntimeError for a bad file
            accepted = "a model of paddle.vision, a folder, a hub name, digits"
            raise error(f"The model cannot be loaded ({cause}). Accepted: {accepted}.", model=args.model) from cause
    name_classes(model, names)
    return model, model.config.image_size, CLIP


def build(args, parts):
    names = sorted({name for rows in parts.each(list).values() for _, name in rows})
    if len(names) < 2:
        raise error(f"A classifier needs at least two classes; the images have {names}.", data=args.data)
    model, size, norm = load_classifier(args, names)
    sizes = {"train": size if args.model == "digits" else size * 8 // 7, "validation": size, "test": size}
    data = {split: Images(getattr(parts, split), names, sizes[split], norm) for split in sizes}
    trainer = ImageTuner(model, args, data, collate)
    trainer.size = size
    return trainer, names


def run(argv):
    args = parse(argv, Arguments)
    parts = load_images(args.data)
    trainer, names = build(args, parts)
    fine_tune(trainer, classification.majority_score(parts.test), parts, {"classes": names, "size": trainer.size})


main = entry_point(run)

if __name__ == "__main__":
    main()
