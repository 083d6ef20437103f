"""`paddle.Model`: `prepare` and `fit` with our optimizers, schedules and layer-wise rates; docs/frameworks.md."""

import re

import numpy as np
import paddle
import pytest
from optimizer_cases import near, same, static_graph
from paddle import nn
from paddle.static import InputSpec
from project import ROOT

import paddle_ldopt as ldopt

pytestmark = pytest.mark.filterwarnings("ignore:Some layers of the model")
STEPS = 6
every_name = pytest.mark.parametrize("name", ldopt.list_optimizers())


def Net():
    blocks = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU()) for _ in range(2)]
    return nn.Sequential(
        ("embeddings", nn.Linear(4, 8)), ("blocks", nn.Sequential(*blocks)), ("classifier", nn.Linear(8, 2))
    )


class Data(paddle.io.Dataset):
    def __init__(self, rows=24):
        self.x = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
        self.y = (self.x.sum(1) > 0).astype("int64")[:, None]

    def __getitem__(self, row):
        return self.x[row], self.y[row]

    def __len__(self):
        return len(self.x)


def build(name, rate=None, **options):
    """Return a network with names of its own, its optimizer and its schedule."""
    with paddle.utils.unique_name.guard():
        paddle.seed(0)
        net = Net()
        rate = ldopt.get_scheduler("cosine", 0.01, 2, 4 * STEPS) if rate is None else rate
        return net, ldopt.create(name, net, 0.5, learning_rate=rate, **options), rate


def prepared(net, optimizer, specs=(), **settings):
    model = paddle.Model(net, *specs)
    model.prepare(optimizer, nn.CrossEntropyLoss(), paddle.metric.Accuracy(), **settings)
    return model


def fit(model, epochs=2, **settings):
    model.fit(Data(), batch_size=8, epochs=epochs, shuffle=False, verbose=0, **settings)
    return {name: value.numpy() for name, value in model.network.named_parameters()}


def by_hand(net, optimizer, schedule, accumulate=1):
    """Train as `fit` does, with `step` in place of `minimize`."""
    data = Data()
    for batch in range(STEPS):
        rows = slice(8 * (batch % 3), 8 * (batch % 3) + 8)
        loss = nn.functional.cross_entropy(net(paddle.to_tensor(data.x[rows])), paddle.to_tensor(data.y[rows]))
        loss.backward()
        if (batch + 1) % accumulate == 0:
            optimizer.step()
            optimizer.clear_grad()
        schedule.step()
    return {name: value.numpy() for name, value in net.named_parameters()}


@every_name
@pytest.mark.parametrize("accumulate", [1, 3])
def test_fit_takes_the_steps_of_a_loop(name, accumulate):
    net, optimizer, schedule = build(name)
    got = fit(prepared(net, optimizer), accumulate_grad_batches=accumulate)
    assert schedule.last_epoch == STEPS and optimizer.get_lr() == schedule(), "after every batch"
    same(got, by_hand(*build(name), accumulate=accumulate))


@every_name
def test_a_resume_is_exact(name, tmp_path):
    net, optimizer, _ = build(name)
    model = prepared(net, optimizer)
    fit(model)
    model.save(str(tmp_path / "checkpoint"))
    want = fit(model)
    other, resumed, schedule = build(name)
    again = prepared(other, resumed)
    again.load(str(tmp_path / "checkpoint"))
    assert schedule.last_epoch == STEPS
    same(fit(again), want)
    _, net = Net(), Net()  # its parameters have other names than the saved ones
    with pytest.raises(ValueError, match="rebuild the model under `paddle.utils.unique_name.guard"):
        prepared(net, ldopt.create(name, net, 0.5, learning_rate=0.01)).load(str(tmp_path / "checkpoint"))


@pytest.mark.representatives
@every_name
@pytest.mark.parametrize("prefix", [None, "mine"])
@pytest.mark.parametrize("stepped", [False, True], ids=["new", "stepped"])
def test_the_first_optimizer_of_a_process_resumes(name, prefix, stepped, tmp_path):
    def made(trains=True):
        with paddle.utils.unique_name.guard():  # its state has the number 0
            net = Net()
            rate = {"relative_step": False} if name == "adafactor" else {}
            rate = {"use_muon": lambda param: len(param.shape) == 2} if name == "muon" else rate
            params = net.parameters()
            opt = ldopt.optimizer_class(name)(learning_rate=0.01, parameters=params, name=prefix, **rate)
            model = prepared(net, opt)
            if trains:
                fit(model)
        return model

    model, again = made(), made(stepped)
    model.save(str(tmp_path / "checkpoint"))
    again.load(str(tmp_path / "checkpoint"))
    assert not [key for key in again._optimizer.state_dict() if "__" in key]
    same(fit(again), fit(model))


@pytest.mark.representatives(count=2)
@pytest.mark.parametrize("name", [name for name in ldopt.list_optimizers() if name != "muon"])  # which refuses
def test_a_static_graph_takes_the_same_steps(name, tmp_path):
    model = prepared(*build(name)[:2])
    model.save(str(tmp_path / "start"))
    want = fit(model)
    with static_graph():
        net, optimizer, schedule = build(name)
        specs = [InputSpec([None, 4], "float32", "x")], [InputSpec([None, 1], "int64", "y")]
        static = prepared(net, optimizer, specs=specs)
        static.load(str(tmp_path / "start"), reset_optimizer=True)
        static.fit(Data(), batch_size=8, epochs=2, shuffle=False, verbose=0)
        static.save(str(tmp_path / "end"))
    assert schedule.last_epoch == STEPS
    got = {key: np.asarray(value) for key, value in paddle.load(str(tmp_path / "end.pdparams")).items()}
    near(got, want, rtol=1e-4, atol=1e-5)


def test_the_page_runs_and_prints_what_it_says(capsys):
    page = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8").partition("\n## paddle.Model")[2]
    first, second = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)
    exec(first, {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == re.search(r"^```\n(epoch.*?)^```", page, re.S | re.M)[1].splitlines() and len(printed) == 3
    names = {}
    exec(second, names)
    assert names["schedule"].last_epoch == 2
