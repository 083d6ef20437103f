"""Images with their classes, for training, validation and test: from a folder, a hub, or scikit-learn's digits.

parts = load_images("photos/")                     # photos/<class>/<name>.jpg, or photos/train/<class>/<name>.jpg...
data = encode(parts.train, ["cat", "dog"], size=224)
"""

import dataclasses
import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import paddle
from PIL import Image
from sklearn.datasets import load_digits

from .errors import error
from .parts import check_examples, deal
from .text_sources import STEMS, hub_rows, label_names

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
MEAN, DEVIATION = (0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)  # mean and deviation of CLIP's training pixels


def digits(wanted):
    """Return the `Parts` of handwritten digits, (image, name)."""
    found = load_digits()
    rows = [(np.uint8(image * 15), str(name)) for image, name in zip(found.images, found.target) if name in wanted]
    return deal(rows, lambda row: str(row[0].tolist()), "Handwritten digits of 8 x 8 pixels")


def folder_rows(path):
    """Return [(file, class), ...] of a folder with a subfolder for each class."""
    files = [file for file in sorted(path.glob("*/*")) if file.suffix.lower() in SUFFIXES]
    if not files:
        raise error(f"The folder has no images ({', '.join(SUFFIXES)}) in a subfolder for each class.", data=path)
    return [(file, file.parent.name) for file in files]


def hub_images(data, split):
    """Return [(image, class), ...] of a hub's data set."""
    image, label = (next((n for n in names if n in data[0]), None) for names in (("image", "img"), ("label", "labels")))
    if image is None or label is None:
        raise error("The columns `label` and `image` or `img` are required.", split=split, has=list(data[0]))
    names = label_names(data, label)
    return [(np.array(row[image]), names[row[label]] if names else str(row[label])) for row in data]


def load_images(source):
    """Return the `Parts` of images and the names of their classes."""
    hub, _, name = source.partition(":")
    if source == "digits":
        return digits(range(5, 10))
    if hub in ("paddlenlp", "datasets") and name:
        parts = hub_rows(hub, name, hub_images)
    else:
        path = Path(source)
        if not path.is_dir():
            raise error(
                "The source does not exist. Accepted: digits, a folder, paddlenlp:NAME, datasets:NAME.", data=source
            )
        found = {split: path / stem for split, stems in STEMS.items() for stem in stems if (path / stem).is_dir()}
        found = found if "train" in found else {"train": path}
        parts = {split: folder_rows(folder) for split, folder in found.items()}
    return deal(parts, lambda row: hashlib.sha256(_content(row[0])).hexdigest(), source)


def _content(image):
    return image.read_bytes() if isinstance(image, Path) else image.tobytes()


def few(parts, per_class):
    """Return the `Parts` with the first `per_class` training images of each class."""
    counts = Counter(name for _, name in parts.train)
    check_examples(counts, per_class, "images")
    train = [row for name in sorted(counts) for row in [r for r in parts.train if r[1] == name][:per_class]]
    used = f"{parts.description} Trained on {len(train)}, {per_class} of each class."
    return dataclasses.replace(parts, train=train, description=used)


def encode(rows, names, size):
    """Return a data set of pixels [3, size, size] and numbers of classes."""
    data = []
    for image, name in rows:
        with Image.open(image) if isinstance(image, Path) else Image.fromarray(image) as opened:
            pixels = np.asarray(opened.convert("RGB").resize((size, size)), "float32") / 255
        data.append({"pixel_values": ((pixels - MEAN) / DEVIATION).astype("float32").transpose(2, 0, 1)})
        data[-1]["labels"] = names.index(name)
    return data


def collate(rows):
    """Return a batch."""
    return {name: paddle.to_tensor(np.stack([row[name] for row in rows])) for name in rows[0]}
