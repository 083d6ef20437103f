"""What the tests of the Trainer share: a tiny model, its data and trainings, on whichever Trainer is installed."""

import os
import random
import re
import signal
import threading
from dataclasses import dataclass

os.environ.setdefault("WANDB_DISABLED", "true")

import numpy as np
import paddle
from paddle import nn
from paddle.distributed import fleet

from paddle_ldopt.trainer import LdoptArgumentsMixin, LdoptTrainerMixin

try:
    from paddlenlp import trainer as theirs
    from paddlenlp.transformers import BertConfig, BertForSequenceClassification
except ImportError:
    from paddleformers import trainer as theirs

FORMERS = theirs.__name__.startswith("paddleformers")
EarlyStoppingCallback, PdArgumentParser = theirs.EarlyStoppingCallback, theirs.PdArgumentParser
Trainer, TrainerCallback, TrainingArguments = theirs.Trainer, theirs.TrainerCallback, theirs.TrainingArguments
SAMPLES, BATCH = 24, 4  # six steps make an epoch
STEPS = 20


@dataclass
class Arguments(LdoptArgumentsMixin, TrainingArguments):
    """TrainingArguments with the layer-wise ones."""


class LdoptTrainer(LdoptTrainerMixin, Trainer):
    """The Trainer with layer-wise rates."""


class TinyEncoder(nn.Layer):
    """Stands in for BERT, which PaddleFormers does not have; the same names where the tests look."""

    def __init__(self, layers, dropout):
        super().__init__()
        self.bert = nn.Layer()
        self.bert.embeddings = nn.Embedding(64, 16)
        block = nn.TransformerEncoderLayer(16, 2, 32, dropout, activation="gelu")
        self.bert.encoder = nn.TransformerEncoder(block, layers)
        self.classifier = nn.Linear(16, 2)

    def forward(self, input_ids, labels=None):
        """Return (loss, logits)."""
        logits = self.classifier(self.bert.encoder(self.bert.embeddings(input_ids)).mean(axis=1))
        return (nn.functional.cross_entropy(logits, labels.reshape([-1])), logits) if labels is not None else logits


def tiny_model(layers=2, dropout=0.0, seed=0):
    """Build a classifier, under the names that it would have in a fresh process."""
    paddle.seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    with paddle.utils.unique_name.guard():
        if FORMERS:
            return TinyEncoder(layers, dropout)
        sizes = {"vocab_size": 64, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
        sizes.update(num_hidden_layers=layers, max_position_embeddings=32, num_labels=2)
        config = BertConfig(**sizes, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
        return BertForSequenceClassification(config)


class Data(paddle.io.Dataset):
    """Ids whose first is odd or even."""

    def __init__(self, samples=SAMPLES):
        ids = np.random.RandomState(1).randint(1, 64, size=(samples, 8)).astype("int64")
        self.ids, self.labels = ids, ids[:, 0] % 2

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"input_ids": self.ids[i], "labels": self.labels[i]}


def arguments(output_dir, cls=Arguments, **kwargs):
    """Return arguments for a few steps on the CPU, with `kwargs` on top."""
    defaults = {"max_steps": 4, "per_device_train_batch_size": BATCH, "learning_rate": 1e-2, "weight_decay": 0.1}
    defaults.update(logging_steps=100, save_steps=1000, disable_tqdm=True, report_to=[], device="cpu", seed=42)
    if FORMERS:
        defaults["amp_master_grad"] = False
    return cls(output_dir=str(output_dir), **{**defaults, **kwargs})


def trainer(output_dir, model=None, optimizers=(None, None), cls=LdoptTrainer, callbacks=None, **kwargs):
    model = tiny_model() if model is None else model
    args = kwargs.pop("args", None) or arguments(output_dir, **kwargs)
    data = Data()
    return cls(model, args=args, train_dataset=data, eval_dataset=data, optimizers=optimizers, callbacks=callbacks)


class Watch(TrainerCallback):
    """Keeps what is logged, and the rate and the weights before each step."""

    def __init__(self):
        self.logs, self.rates, self.weights = [], [], []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append(dict(logs))

    def on_optimizer_begin(self, args, state, control, model=None, optimizer=None, **kwargs):
        self.rates.append(optimizer.get_lr())
        self.weights.append(weights(model))


def watched(folder, *callbacks, resume=None, **kwargs):
    """Train, named as in a fresh process; return the Trainer and its `Watch`."""
    watch = Watch()
    with paddle.utils.unique_name.guard():
        made = trainer(folder, callbacks=[*callbacks, watch], **kwargs)
        made.train(resume_from_checkpoint=resume)
    return made, watch


def layer_of(name):
    """Return the layer of a parameter of the tiny model: 0 is the embeddings, 3 the head."""
    match = re.search(r"encoder\.layers\.(\d)", name)
    return 1 + int(match.group(1)) if match else 0 if "embeddings" in name else 3


def weights(model):
    """Return structured name -> array."""
    return {name: param.numpy().copy() for name, param in model.state_dict().items()}


def same(first, second):
    """Say whether two dicts of arrays are equal bit for bit."""
    return first.keys() == second.keys() and all(first[k].tobytes() == second[k].tobytes() for k in first)


def messages(monkeypatch):
    """Return a list that gets all that our Trainer logs."""
    said = []
    logger = type("Logger", (), {"info": staticmethod(said.append), "warning": staticmethod(said.append)})
    monkeypatch.setattr("paddle_ldopt.trainer.resume.logger_of", lambda trainer: logger)
    return said


class KillAfter(TrainerCallback):
    """Dies some time after a step, as by the kernel's out-of-memory killer."""

    def __init__(self, step, seconds):
        self.step, self.timer = int(step), threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGKILL))

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.timer.start()


def die_while_saving(name):
    """Let the next save but one of the file `name` be its end."""
    save, seen = paddle.save, []

    def dying_save(obj, path, *args, **kwargs):
        if os.path.basename(path) == name:
            seen.append(path)
            if len(seen) == 2:
                with open(path, "wb") as file:
                    file.write(b"half a file")
                os.kill(os.getpid(), signal.SIGKILL)
        return save(obj, path, *args, **kwargs)

    paddle.save = dying_save


def checkpoint_format(name):
    """Return the arguments that choose a format: "plain" or "unified" in PaddleNLP, "plain" or "flex" in PaddleFormers.

    (PaddleFormers has a unified one for its own kind of models; flex is its default.)
    """
    if not FORMERS:
        return {"unified_checkpoint": name == "unified"}
    form = {"plain": "sharding_io", "flex": "flex_checkpoint"}[name]
    return {"save_checkpoint_format": form, "load_checkpoint_format": form}


def run(output_dir, form="plain", callbacks=None, resume=None, passed=None, **kwargs):
    """Train with dropout and a warm-up over several epochs, named as in a fresh process; return the Trainer.

    The optimizer is AdamWDL with a decay, or `passed(model)` makes (optimizer, scheduler).
    """
    if form == "flex":  # which PaddleFormers does not read without it
        strategy = fleet.DistributedStrategy()
        strategy.hybrid_configs = {"dp_degree": 1, "mp_degree": 1, "pp_degree": 1, "sharding_degree": 1}
        fleet.init(is_collective=True, strategy=strategy)
    settings = {"max_steps": STEPS, "save_steps": 4, **checkpoint_format(form)}
    if passed is None and "args" not in kwargs:
        settings.update(warmup_steps=5, optim="adamwdl", layerwise_lr_decay=0.8)
    with paddle.utils.unique_name.guard():
        model = tiny_model(dropout=0.1)
        optimizers = (None, None) if passed is None else passed(model)
        made = trainer(output_dir, model, optimizers, callbacks=callbacks, **{**settings, **kwargs})
        made.train(resume_from_checkpoint=resume)
    return made


def train_until(folder, form, death, resume):
    """Train and write the final weights into the folder, or die before, in a process of its own.

    How to die: "never"; "after:<step>:<seconds>", perhaps within a save; "saving:<file>", in the middle of writing it.
    """
    kind, _, how = death.partition(":")
    if kind == "saving":
        die_while_saving(how)
    done = run(folder, form, [KillAfter(*how.split(":"))] if kind == "after" else None, resume or None)
    np.savez(os.path.join(folder, "final.npz"), **weights(done.model))
