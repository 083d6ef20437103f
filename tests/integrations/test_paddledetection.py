"""PaddleDetection: builder and trainer, from a YAML file."""

import functools
import importlib
import json

import frameworks
import numpy as np
import paddle
import pytest
import yaml
from layer_models import vit_ratio

import paddle_ldopt as ldopt
from paddle_ldopt.integrations import paddledetection
from paddle_ldopt.rates import applied_rates

engine = pytest.importorskip("ppdet.engine", reason="PaddleDetection is not installed", exc_type=ImportError)
architectures = importlib.import_module("ppdet.modeling.architectures.meta_arch")
vit = importlib.import_module("ppdet.modeling.backbones.vision_transformer")
workspace = importlib.import_module("ppdet.core.workspace")
DECAY, DEPTH = 0.7, 4
OWN = {  # as in PaddleDetection's configuration files for ViT
    "type": "AdamWDL",
    "betas": [0.9, 0.99],
    "layer_decay": DECAY,
    "weight_decay": 0.1,
    "num_layers": DEPTH,
    "filter_bias_and_bn": True,
    "skip_decay_names": ["pos_embed", "cls_token"],
    "set_param_lr_func": "layerwise_lr_decay",
}
PIECEWISE = {"name": "PiecewiseDecay", "gamma": 0.5, "milestones": [1], "use_warmup": False}
NORMALIZE = {"NormalizeImage": {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "is_scale": True}}
ratio = functools.partial(vit_ratio, decay=DECAY, depth=DEPTH)


@workspace.register
class SmallDetector(architectures.BaseArch):
    """A ViT with a neck and a head that predicts one number."""

    def __init__(self):
        super().__init__()
        small = {"img_size": [32, 32], "patch_size": 8, "embed_dim": 16, "depth": DEPTH, "num_heads": 2, "mlp_ratio": 2}
        self.backbone = vit.VisionTransformer(**small, final_norm=False, out_indices=[DEPTH - 1], pretrained=None)
        self.neck, self.bbox_head = paddle.nn.Linear(16, 8), paddle.nn.Linear(8, 1)

    def _forward(self):
        features = self.backbone(self.inputs)[0]
        return self.bbox_head(self.neck(features.flatten(2).mean(-1)))

    def get_loss(self):
        return {"loss": paddle.mean((self._forward() - 1.0) ** 2)}

    def get_pred(self):
        return self._forward()


@pytest.fixture
def trainer(tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    images, boxes = [], []
    for i in range(10):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype="uint8")).save(tmp_path / f"{i}.jpg")
        images.append({"id": i, "file_name": f"{i}.jpg", "width": 32, "height": 32})
        boxes.append({"id": i, "image_id": i, "category_id": 1, "bbox": [4, 4, 16, 16], "area": 256, "iscrowd": 0})
    boxes_of_one_class = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    (tmp_path / "boxes.json").write_text(json.dumps(boxes_of_one_class))
    paddledetection.register()

    def build(more=None, epoch=1, **builder):
        fields = {"dataset_dir": str(tmp_path), "data_fields": ["image", "gt_bbox", "gt_class"]}
        reader = {"batch_size": 2, "shuffle": False, "drop_last": True, "collate_batch": False}
        settings = {
            "architecture": "SmallDetector",
            **dict.fromkeys(["use_gpu", "use_npu", "use_mlu", "use_ema", "amp"], False),
            **{"epoch": epoch, "log_iter": 100, "snapshot_epoch": 1, "save_dir": str(tmp_path)},
            **{"metric": "COCO", "num_classes": 1, "worker_num": 0},
            "TrainDataset": {"name": "COCODataSet", "image_dir": "", "anno_path": "boxes.json", **fields},
            "TrainReader": {"sample_transforms": [{"Decode": {}}, NORMALIZE, {"Permute": {}}], **reader},
            "TestReader": {"sample_transforms": [NORMALIZE]},
            "LearningRate": {"base_lr": 0.01, "schedulers": [PIECEWISE]},
            "OptimizerBuilder": {"regularizer": False, "optimizer": OWN, "clip_grad_by_norm": None, **builder},
            **(more or {}),
        }
        path = tmp_path / "config.yml"
        path.write_text(yaml.safe_dump(settings))
        workspace.global_config["OptimizerBuilder"]["optimizer"] = {}  # a file is merged into those read before
        paddle.seed(3)
        with paddle.utils.unique_name.guard():  # names as in a process of its own, by which states are found
            return engine.Trainer(workspace.load_config(str(path)), mode="train")

    return build


def decayed(name):
    return not ("bias" in name or "norm" in name or "pos_embed" in name or "cls_token" in name)


def test_the_trainer_gives_each_layer_its_rate(trainer):
    run = trainer()
    assert isinstance(run.optimizer, ldopt.AdamWDL)
    watched = frameworks.Watched(run.optimizer, run.model)
    run.train()
    watched.assert_follows(ratio, weight_decay=0.1, decayed=decayed, beta2=0.99)


def test_a_resumed_trainer_goes_on_exactly(trainer, tmp_path):
    straight = trainer(epoch=2)
    straight.train()
    trainer(epoch=1).train()
    resumed = trainer(epoch=2)
    resumed.resume_weights(str(tmp_path / "config" / "model_final"))
    assert resumed.start_epoch == 1
    resumed.train()
    frameworks.assert_same_weights(straight.model, resumed.model)
    with pytest.raises(ValueError, match=frameworks.another_decay(DECAY)):
        trainer(optimizer={**OWN, "layer_decay": 0.5}).resume_weights(str(tmp_path / "config" / "model_final"))


@pytest.mark.parametrize("more", [{"use_ema": True, "ema_decay": 0.5}, {"amp": True, "amp_level": "O2"}], ids=str)
def test_an_average_of_the_weights_and_amp_change_no_rate(trainer, more):
    plain, run = trainer(), trainer(more)
    plain.train()
    run.train()
    frameworks.assert_ratios(run.optimizer, run.model, ratio)
    frameworks.assert_same_weights(plain.model, run.model)


@pytest.mark.parametrize("name", ["Came", "Lamb", "Adafactor", "AdamWeightDecay"])
def test_every_optimizer_is_a_name_of_the_configuration_file(trainer, name):
    settings = {"type": name, "layerwise_decay": DECAY}
    run = trainer(optimizer=settings, regularizer={"type": "L2", "factor": 1e-4}, clip_grad_by_norm=1.0)
    assert isinstance(run.optimizer, getattr(ldopt, name))
    frameworks.assert_ratios(run.optimizer, run.model, ratio)
    run.train()


def test_param_groups_multiply_the_rates_of_the_layers(trainer):
    groups = [
        {"params": ["^(?=.*bbox)(?!.*neck)"], "learning_rate": 10.0, "weight_decay": 0.0},
        {"params": ["decoder"]},
    ]
    with pytest.warns(UserWarning, match="A group matches no parameter.*Received: parts=.'decoder'"):
        run = trainer(optimizer={**OWN, "param_groups": groups})
    rates = applied_rates(run.optimizer)
    assert rates[run.model.bbox_head.weight.name] == pytest.approx(0.1)
    assert rates[run.model.neck.weight.name] == pytest.approx(0.01)
    assert rates[run.model.backbone.blocks[0].mlp.fc1.weight.name] == pytest.approx(0.01 * DECAY**DEPTH)
    for name, param in run.model.named_parameters():
        if not param.stop_gradient:
            wanted = decayed(name) and not name.startswith("bbox_head")
            assert run.optimizer.has_nonzero_weight_decay(param) == wanted, name


def test_paddledetections_optimizers_stay(trainer):
    assert type(trainer(optimizer={"type": "Momentum", "momentum": 0.9}).optimizer) is paddle.optimizer.Momentum


@pytest.mark.parametrize(
    ("builder", "message"),
    [
        ({"optimizer": {"type": "Came"}, "regularizer": {"type": "L1", "factor": 0.1}}, "no L1 decay"),
        ({"optimizer": {**OWN, "layerwise_decay": 0.6}}, "give one. Received: layerwise_decay=0.6"),
        ({"optimizer": {**OWN, "betas": [0.9, 0.9], "beta1": 0.8}}, "give one. Received: beta1=0.8"),
        ({"optimizer": {**OWN, "filter_bias_and_bn": "false"}}, "Received: filter_bias_and_bn='false'"),
        ({"optimizer": {**OWN, "skip_decay_names": "pos_embed"}}, "list.*Received: skip_decay_names='pos_embed'"),
        ({"optimizer": {**OWN, "param_groups": [{"params": "neck"}]}}, "list.*Received: params='neck'"),
        ({"optimizer": {**OWN, "param_groups": [{"weight_decay": 0.0}]}}, "list.*Received: params=None"),
    ],
)
def test_wrong_settings_are_refused(trainer, builder, message):
    with pytest.raises((TypeError, ValueError), match=message):
        trainer(**builder)
