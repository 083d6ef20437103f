"""Images with their classes, for training, validation and test: from a folder, a hub, or scikit-learn's digits."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import paddle
from PIL import Image, ImageFile, ImageOps
from sklearn.datasets import load_digits

from . import classification, error
from .rows import STEMS, deal, first_of_each, load_parts

ImageFile.LOAD_TRUNCATED_IMAGES = True  # the rest of such a file is grey
# mean and deviation of the training pixels of CLIP and of ImageNet
CLIP = ((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def digits(wanted):
    found = load_digits()
    rows = [(np.uint8(image * 15), str(name)) for image, name in zip(found.images, found.target) if name in wanted]
    return deal(rows, lambda row: str(row[0].tolist()), "Handwritten digits of 8 x 8 pixels")


def few_digits():
    """Return the digits 5 to 9, with 20 images of each for training."""
    parts = digits(range(5, 10))
    return dataclasses.replace(parts, train=first_of_each(sorted(parts.train, key=lambda row: row[1]), 20))


def folder_rows(path, notes):
    """Return [(file, class), ...] of a folder with a subfolder for each class; drop files that are no images."""
    files = [file for file in sorted(path.glob("*/*")) if file.is_file() and file.name[0] != "."]
    rows, dropped = [], []
    for file in files:
        try:
            with Image.open(file):
                rows.append((file, file.parent.name))
        except OSError:
            dropped.append((file.relative_to(path), "image"))
    if not rows:
        raise error("The folder has no images (such as .jpg) in a subfolder for each class.", data=path)
    notes.drop(dropped, len(files), path)
    return rows


def hub_images(data, split, notes=None):
    image, label = (next((n for n in names if n in data[0]), None) for names in (("image", "img"), ("label", "labels")))
    if image is None or label is None:
        raise error("The columns `label` and `image` or `img` are required.", split=split, has=list(data[0]))
    return [(np.array(row[image]), str(row[label])) for row in data if row[label] is not None]


def split_folders(path):
    """Return split -> folder of the train, dev and test folders in a folder, or of the folder alone."""
    found = {split: path / stem for split, stems in STEMS.items() for stem in stems if (path / stem).is_dir()}
    return found if "train" in found else {"train": path}


def load_images(source):
    """Return the `Parts` of images and the names of their classes, (image, name)."""

    def key(row):
        content = row[0].read_bytes() if isinstance(row[0], Path) else row[0].tobytes()
        return hashlib.sha256(content).hexdigest()

    own = {"digits": few_digits}
    return load_parts(source, own=own, read=folder_rows, rows_of=hub_images, key=key, find=split_folders)


class Images:
    """A data set of pixels [3, size, size] and numbers of classes; whole images, resized to a square."""

    def __init__(self, rows, names, size, norm=CLIP):
        self.rows, self.names, self.size, self.norm = rows, names, size, norm

    def __len__(self):
        return len(self.rows)

    def score(self, prediction):
        return classification.class_scores(prediction.predictions, prediction.label_ids)

    def judge(self, logits, labels):
        return classification.judge(logits, labels, self.names, [image for image, _ in self.rows])

    def __getitem__(self, index):
        image, name = self.rows[index]
        try:
            pixels = self._pixels(image)
        except OSError as cause:
            raise error(f"The image cannot be read ({cause}).", image=image) from cause
        return {"pixel_values": pixels, "labels": self.names.index(name)}

    def _pixels(self, image):
        with Image.open(image) if isinstance(image, Path) else Image.fromarray(image) as opened:
            upright = ImageOps.exif_transpose(opened)
            if upright.mode.startswith("I"):  # 16 bits, which `convert` would clip
                upright = Image.fromarray((np.asarray(upright) // 257).astype("uint8"))
            pixels = np.asarray(upright.convert("RGB").resize((self.size, self.size)), "float32") / 255
        mean, deviation = self.norm
        return ((pixels - mean) / deviation).astype("float32").transpose(2, 0, 1)


def collate(rows):
    return {name: paddle.to_tensor(np.stack([row[name] for row in rows])) for name in rows[0]}
