"""recipes/image_classification.py and where its images come from."""

import os
import shutil
import types

import image_classification
import numpy as np
import paddle
import pytest
from common import predictors, rows
from common.files import Notes
from paddlenlp.transformers import CLIPVisionConfig, CLIPVisionModel
from PIL import Image

SHAPE = {**image_classification.SMALL, "num_attention_heads": 4}


def load(name, classes, weights=None):
    args = types.SimpleNamespace(model=name, weights=weights, seed=1)
    return image_classification.load_classifier(args, [str(i) for i in range(classes)])


@pytest.fixture
def photos(tmp_path):
    """A folder with images of two classes, red and green."""
    for split, amount in (("train", 6), ("dev", 2), ("test", 3)):
        for name, color in (("red", (255, 0, 0)), ("green", (0, 255, 0))):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(amount):
                Image.new("RGB", (10 + i, 12), color).save(tmp_path / split / name / f"{split}{i}.png")
    return tmp_path


def test_pretraining_and_fine_tuning_have_no_digit_in_common():
    own = image_classification.load_images("digits")
    assert {name for _, name in own.train + own.validation + own.test} == set("56789")
    assert {name for _, name in image_classification.digits(range(5)).train} == set("01234")
    assert len(own.train) == 100, "few of them"
    image, _ = own.train[0]
    assert image.shape == (8, 8) and image.dtype == np.uint8 and image.max() > 200


def test_images_of_folders(photos):
    split = image_classification.load_images(str(photos))
    assert [len(part) for part in (split.train, split.validation, split.test)] == [12, 4, 6]
    data = image_classification.Images(split.test, ["green", "red"], size=4)
    assert [data[i]["labels"] for i in range(len(data))] == [0, 0, 0, 1, 1, 1]
    red = (np.array([1.0, 0, 0]) - image_classification.CLIP[0]) / image_classification.CLIP[1]
    np.testing.assert_allclose(data[len(data) - 1]["pixel_values"], np.tile(red[:, None, None], (1, 4, 4)), rtol=1e-6)
    assert data[len(data) - 1]["pixel_values"].dtype == np.float32
    with pytest.raises(ValueError, match="No rows are left for"):
        image_classification.load_images(str(photos / "dev"))
    with pytest.raises(ValueError, match="no images .* in a subfolder for each class"):
        image_classification.load_images(str(photos / "train" / "red"))
    with pytest.raises(ValueError, match="Accepted: digits, a path, .*Received: source='nowhere'"):
        image_classification.load_images("nowhere")


def test_images_of_a_hub():
    class Data(list):
        label_list = ["cat", "dog"]

    grey = Image.new("L", (2, 2), 7)
    (row,) = image_classification.hub_images(rows.records_of(Data([{"img": grey, "label": 1}])), "train", Notes())
    assert row[1] == "dog" and row[0].tolist() == [[[7] * 3] * 2] * 2
    colour = Image.new("RGB", (2, 2), (200, 30, 60))
    for mode in ("P", "CMYK"):  # a palette's numbers and four inks are no red, green and blue
        data = [{"image": colour.convert(mode), "label": "cat"}]
        assert np.abs(image_classification.hub_images(data, "train", Notes())[0][0] - [200, 30, 60]).max() < 60
    with pytest.raises(ValueError, match="are required"):
        image_classification.hub_images([{"text": "x"}], "train", Notes())


def test_the_pretrained_weights_are_those_that_fine_tuning_begins_with(monkeypatch):
    weights = {"ln_pre.weight": np.full([64], 3.0, "float32")}
    monkeypatch.setattr(image_classification, "pretrained_on_digits", lambda seed: weights)
    with paddle.utils.unique_name.guard():
        model = load("digits", 7)[0]
    assert model.vision_model.ln_pre.weight.numpy().tolist() == [3.0] * 64
    assert model.classifier.weight.shape == [64, 7]


@pytest.mark.parametrize("saved", ["CLIPVisionModel", "VisionClassifier"])
def test_a_saved_model_is_loaded_with_a_new_head(tmp_path, saved):
    paddle.seed(0)
    with paddle.utils.unique_name.guard():
        cls = {"CLIPVisionModel": CLIPVisionModel, "VisionClassifier": image_classification.VisionClassifier}[saved]
        before = cls(CLIPVisionConfig(**SHAPE))
        before.save_pretrained(tmp_path)
    with paddle.utils.unique_name.guard():
        model = load(str(tmp_path), 3)[0]
    assert model.classifier.weight.shape == [64, 3]
    after = model.vision_model.state_dict()
    for name, value in before.vision_model.state_dict().items():
        assert np.array_equal(value.numpy(), after[name].numpy()), name
    with pytest.raises(ValueError, match="Accepted: a model of paddle.vision, .*Received: model='/nowhere/at/all'"):
        load("/nowhere/at/all", 3)


def test_images_are_dealt_out_by_what_they_show_wherever_they_are(tmp_path):
    draw = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(60):
            pixels = draw.integers(0, 255, (8, 8, 3), dtype="uint8")
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    shutil.copytree(tmp_path / "photos", tmp_path / "copied")
    first, copied = (image_classification.load_images(str(tmp_path / folder)) for folder in ("photos", "copied"))
    for split in ("train", "validation", "test"):
        one, other = ([path.parts[-2:] for path, _ in getattr(split_of, split)] for split_of in (first, copied))
        assert one == other and one


def test_files_that_are_no_images_are_dropped_and_counted(photos):
    for name in ("broken.png", ".DS_Store"):
        (photos / "train/red" / name).write_bytes(b"not an image")
    shutil.copytree(photos / "test/red", photos / "train/red/another folder")
    for i in range(47):
        shutil.copy(photos / "train/red/train0.png", photos / f"train/red/copy{i}.png")
    Image.effect_noise((64, 64), 50).save(photos / "train/red/cut short.jpg")
    os.truncate(photos / "train/red/cut short.jpg", 900)
    found = image_classification.load_images(str(photos)).description
    assert "Rows dropped: 3 without a readable image; scores cover 69 of 72 rows." in found
    (photos / "train/red/from a phone.heic").write_bytes(b"not an image")
    wrong = "red/another folder has no readable image; red/broken.png has no readable image; red/cut short.jpg has no"
    with pytest.raises(ValueError, match=f"{wrong} readable image; 4 of 63 rows are wrong"):
        image_classification.load_images(str(photos))


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.gif", "a.tiff"])
def test_an_image_without_its_end_is_read_neither_in_training_nor_in_prediction(tmp_path, name):
    (tmp_path / "noise").mkdir()
    path = tmp_path / "noise" / name
    Image.effect_noise((64, 64), 50).save(path)
    data = image_classification.Images([(path, "noise")], ["noise"], 8)
    assert data[0]["pixel_values"].shape == (3, 8, 8)
    os.truncate(path, path.stat().st_size - 100)
    with Image.open(path), pytest.raises(ValueError, match="image cannot be read"):  # it opens
        data[0]
    with pytest.raises(ValueError, match="There are no images that can be read"):
        image_classification.load_images(str(tmp_path))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:When training, we now always track:UserWarning")
def test_a_model_of_paddle_vision_is_trained_at_its_size_and_applied(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("common.run_report._image", lambda *_, **__: "<img>")
    paddle.seed(0)
    weights = paddle.vision.models.mobilenet_v3_small(num_classes=1000).state_dict()
    paddle.save(weights, str(tmp_path / "weights.pdparams"))
    argv = ["--data", str(photos), "--model", "mobilenet_v3_small", "--weights", str(tmp_path / "weights.pdparams")]
    argv += ["--max_steps", "1", "--output_dir", str(tmp_path / "out"), "--per_device_train_batch_size", "4"]
    with paddle.utils.unique_name.guard():
        image_classification.main([*argv, "--disable_tqdm", "True", "--report_to", "none"])
    out = capsys.readouterr().out
    assert "new weights, not in" in out and "classifier.3.bias, classifier.3.weight." in out
    (found,) = predictors.Predictor(tmp_path / "out")([(str(photos / "test/red/test0.png"),)])
    assert found["label"] in ("green", "red") and sum(found["probabilities"].values()) == pytest.approx(1)
    page = (tmp_path / "out/report.html").read_text()
    assert ("Most confident mistakes" in page) == ('<img class="small"' in page)


def test_training_crops_larger_images_alike_after_a_resume(tmp_path):
    args = image_classification.Arguments(output_dir=str(tmp_path / "out"))
    model = paddle.nn.Sequential(paddle.nn.Flatten(), paddle.nn.Linear(3 * 16, 2))
    seen = []
    trainer = image_classification.ImageTuner(model, args, dict.fromkeys(("train", "validation", "test")), None)
    trainer.size = 4
    pixels = np.random.default_rng(0).random([8, 3, 6, 6]).astype("float32")

    def cropped(step):
        trainer.state.global_step = step
        batch = {"pixel_values": paddle.to_tensor(pixels), "labels": paddle.zeros([8], "int64")}
        trainer.compute_loss(lambda pixel_values: seen.append(pixel_values.numpy()) or paddle.ones([8, 2]), batch)
        return seen[-1]

    first = cropped(1)
    assert first.shape == (8, 3, 4, 4) and np.array_equal(first, cropped(1)) and not np.array_equal(first, cropped(2))
