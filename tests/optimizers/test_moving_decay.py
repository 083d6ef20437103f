"""A decay that moves (`end`): the rates of every step, in every way of taking one, on resume, in files and tables."""

import itertools

import numpy as np
import paddle
import pytest
from optimizer_cases import OPTIMIZERS, every_optimizer, same
from paddle.optimizer import lr

import paddle_ldopt as ldopt
from paddle_ldopt import LayerDecay, LayerMap
from paddle_ldopt.schedules import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup, get_scheduler
from paddle_ldopt.schedules.ahead import length_of

STEPS = 5
DECAY = LayerDecay(0.35, end=1.0, min_ratio=0.05)
TOKENS = np.array([[0, 1, 2], [3, 4, 5]])


class Net(paddle.nn.Layer):
    """An embedding, two blocks, a norm."""

    def __init__(self):
        super().__init__()
        self.embed = paddle.nn.Embedding(6, 4)
        self.blocks = paddle.nn.LayerList([Block() for _ in range(2)])
        self.norm = paddle.nn.LayerNorm(4)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm(x) * paddle.arange(1.0, 5.0)


class Block(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.first, self.second = paddle.nn.Linear(4, 4), paddle.nn.Linear(4, 4)

    def forward(self, x):
        return x + paddle.tanh(self.second(self.first(x)))


def net():
    with paddle.utils.unique_name.guard():
        paddle.seed(1)
        return Net()


def schedule():
    return get_linear_schedule_with_warmup(0.01, 1, STEPS)


def arguments(name, **more):
    return {**OPTIMIZERS[name], "learning_rate": schedule(), **more}


def by_hand(name, step, steps=STEPS):
    """Return the ratio of a parameter at a step: arithmetic written a second time."""
    layer = 0 if name.startswith("embed") else int(name.split(".")[1]) + 1 if name.startswith("blocks") else 3
    progress = min(step / steps, 1.0)
    decay = 0.35 * (1 - progress) + 1.0 * progress
    return 1.0 if layer == 3 else max(decay ** (3 - layer), 0.05)


def train(model, opt, start=0, until=STEPS, before=lambda step: None, step=None):
    def one(tokens):
        model(tokens).square().mean().backward()
        opt.step()
        opt.clear_grad()

    one = step(one) if step else one
    for i in range(start, until):
        before(i)
        one(paddle.to_tensor(TOKENS))
        opt._learning_rate.step()
    return {n: p.numpy().copy() for n, p in model.named_parameters()}


def made(name, model, **more):
    cls = ldopt.optimizer_class(name)
    layers = LayerMap.from_model(model)
    return cls(parameters=model.parameters(), layers=layers, **{"layerwise_decay": DECAY, **arguments(name, **more)})


def expected(name, steps=STEPS, **more):
    """Return the weights of a training whose rates are set by hand before each step."""
    model = net()
    opt = ldopt.optimizer_class(name)(parameters=model.parameters(), **arguments(name, **more))

    def before(step):
        for n, param in model.named_parameters():
            param.optimize_attr["learning_rate"] = by_hand(n, step, steps)

    return train(model, opt, before=before)


def close(got, want, rtol=2e-6, atol=1e-7):
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("fused", [None, False])
@every_optimizer
def test_each_step_has_its_rates(name, fused):
    model = net()
    opt = made(name, model, fused=fused)
    seen = []

    def before(step):
        seen.append({n: opt.layerwise_ratio(p) for n, p in model.named_parameters()})

    got = train(model, opt, before=before)
    for step, ratios in enumerate(seen):
        for n, ratio in ratios.items():
            assert ratio == pytest.approx(by_hand(n, step), rel=1e-12)
    close(got, expected(name, fused=fused))


@pytest.mark.representatives(count=1)
@every_optimizer
def test_to_static_moves_too(name):
    want, model = expected(name, fused=False), net()  # first: Paddle cannot import its own modules under `to_static`
    close(train(model, made(name, model, fused=False), step=paddle.jit.to_static), want, rtol=1e-4, atol=1e-5)


@pytest.mark.representatives(count=1)
@every_optimizer
def test_a_static_program_counts_its_runs(name, tmp_path):
    start = {n: p.numpy().copy() for n, p in net().named_parameters()}
    paddle.enable_static()
    try:
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup), paddle.utils.unique_name.guard():
            batch = paddle.static.data("batch", [2, 3], "int64")
            model = Net()
            loss = model(batch).square().mean()
            names = {p.name: n for n, p in model.named_parameters()}
            layers = LayerMap.from_model(model)
            decay = LayerDecay(0.35, end=1.0, min_ratio=0.05, steps=3)  # two steps come after its end
            given = arguments(name, layers=layers, layerwise_decay=decay)
            opt = ldopt.optimizer_class(name)(**given)
            opt.minimize(loss)
        executor, scope = paddle.static.Executor(), paddle.static.Scope()
        with paddle.static.scope_guard(scope):
            executor.run(startup)
            for tensor_name, n in names.items():
                scope.find_var(tensor_name).get_tensor().set(start[n], paddle.CPUPlace())
            for step in range(STEPS):
                if step == 2:  # the count is saved with the program
                    paddle.static.save(main, str(tmp_path / "program"))
                    executor.run(startup)
                    paddle.static.load(main, str(tmp_path / "program"), executor)
                executor.run(main, feed={"batch": TOKENS}, fetch_list=[loss])
                opt._learning_rate.step()
            got = {n: np.array(scope.find_var(t).get_tensor()) for t, n in names.items()}
    finally:
        paddle.disable_static()
    close(got, expected(name, steps=3, fused=False), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fused", [None, False])
@every_optimizer
def test_a_resume_is_exact(name, fused):
    whole = net()
    want = train(whole, made(name, whole, fused=fused))
    first = net()
    opt = made(name, first, fused=fused)
    train(first, opt, until=2)
    again = net()
    again.set_state_dict(first.state_dict())
    resumed = made(name, again, fused=fused)
    resumed.set_state_dict(opt.state_dict())
    same(train(again, resumed, start=2), want)


def test_files_know_the_start_and_the_end_of_the_ratios(tmp_path):
    model = net()
    opt = made("adamwdl", model)
    train(model, opt, until=3)
    path = tmp_path / "opt.safetensors"
    ldopt.save_optimizer(path, opt, model)
    ldopt.load_optimizer(path, made("adamwdl", model), model)
    for other in (LayerDecay(0.35, end=0.9, min_ratio=0.05), LayerDecay(0.36, end=1.0, min_ratio=0.05)):
        with pytest.raises(ValueError, match="changed=.*'layerwise_decay'"):
            ldopt.load_optimizer(path, made("adamwdl", model, layerwise_decay=other), model)


@pytest.mark.parametrize(("saved", "now"), [({"steps": 10}, {"steps": 1000}), ({}, {"steps": 77})])
def test_a_file_knows_over_how_many_steps_the_decay_moves(tmp_path, saved, now):
    models = net(), net()
    first, second = (
        made("adamwdl", model, layerwise_decay=LayerDecay(0.35, end=1.0, **steps))
        for model, steps in zip(models, (saved, now))
    )
    ldopt.save_optimizer(tmp_path / "x.safetensors", first, models[0])
    with pytest.raises(ValueError, match=r"steps of the decay=\d+ \(in the file \d+\)"):
        ldopt.load_optimizer(tmp_path / "x.safetensors", second, models[1])
    assert ldopt.load_optimizer(tmp_path / "x.safetensors", second, models[1], changed=["layerwise_decay"])
    constant = made("adamwdl", models[1], layerwise_decay=0.35)
    with pytest.raises(ValueError, match=r"steps of the decay=absent \(in the file \d+\) of the optimizer"):
        ldopt.load_optimizer(tmp_path / "x.safetensors", constant, models[1])


def test_any_optimizer_of_paddles_moves_with_its_schedule():
    model, hand = net(), net()
    rate = lr.PolynomialDecay(0.1, STEPS, 0.05)
    opt = paddle.optimizer.Momentum(rate, parameters=model.parameters())
    ldopt.apply_layerwise_decay(opt, LayerMap.from_model(model), DECAY)
    plain = paddle.optimizer.Momentum(lr.PolynomialDecay(0.1, STEPS, 0.05), parameters=hand.parameters())

    def before(step):
        for n, param in hand.named_parameters():
            param.optimize_attr["learning_rate"] = by_hand(n, step)

    close(train(model, opt), train(hand, plain, before=before))


@pytest.mark.parametrize("steps, ratios", [(2, [0.5, 0.75, 1.0, 1.0]), (1, [0.5, 1.0, 1.0, 1.0])])
def test_steps_of_its_own_go_before_those_of_the_schedule(steps, ratios):
    model = net()
    opt = made("lamb", model, layerwise_decay=LayerDecay(0.5, end=1.0, steps=steps))
    block = model.blocks[1].first.weight
    assert [(opt.layerwise_ratio(block), opt._learning_rate.step())[0] for _ in range(4)] == ratios


@pytest.mark.parametrize(
    "rate, match",
    [
        (
            lambda: 0.1,
            "as `learning_rate`, not a schedule that follows a metric. Received: learning_rate=0.1",
        ),
        (lambda: lr.ReduceOnPlateau(0.1), "Received: learning_rate='ReduceOnPlateau'"),
        (lambda: lr.LambdaDecay(0.1, lambda step: 1.0), "not have: give LayerDecay.*Received: schedule='LambdaDecay'"),
        (lambda: get_scheduler("inverse_sqrt", 0.1, 1), "Received: schedule='CurveSchedule'"),
    ],
)
def test_unknown_steps_are_refused_before_anything_changes(rate, match):
    model = net()
    opt = made("adamwdl", model, learning_rate=rate())
    before = {n: p.numpy().copy() for n, p in model.named_parameters()}
    model(paddle.to_tensor(TOKENS)).square().mean().backward()
    with pytest.raises(ValueError, match=match):
        opt.step()
    same({n: p.numpy() for n, p in model.named_parameters()}, before)
    with pytest.raises(ValueError, match=match):
        LayerMap.from_model(model).table(optimizer=opt)


@pytest.mark.parametrize(
    "make, steps",
    [
        (lambda: get_linear_schedule_with_warmup(0.1, 3, 20), 20),
        (lambda: get_cosine_schedule_with_warmup(0.1, 3, 20, 2.5), 20),
        (lambda: get_scheduler("cosine_with_restarts", 0.1, 3, 20), 20),
        (lambda: get_scheduler("polynomial", 0.1, 3, 20), 20),
        (lambda: get_scheduler("warmup_stable_decay", 0.1, 3, 20, {"num_decay_steps": 4}), 20),
        (lambda: get_scheduler("cosine_warmup_with_min_lr", 0.1, 3, 20, {"min_lr": 0.01}), 20),
        (lambda: get_scheduler("cool_down", 0.1, 3, 20), 20),
        (lambda: lr.OneCycleLR(0.1, 20), 20),
        (lambda: lr.LinearWarmup(lr.PolynomialDecay(0.1, 20), 3, 0.0, 0.1), 23),
        (lambda: ldopt.WarmUp(0.1, lr.PolynomialDecay(0.1, 20), 3), 23),
        (lambda: lr.PolynomialDecay(0.1, 20, cycle=True), None),
        (lambda: lr.LinearWarmup(0.1, 3, 0.0, 0.1), None),
        (lambda: get_scheduler("constant_with_warmup", 0.1, 3), None),
    ],
)
def test_the_steps_that_schedules_know(make, steps):
    assert length_of(make()) == steps


def test_a_config_knows_the_steps():
    config = ldopt.LdoptConfig(layerwise_lr_decay=0.5, layerwise_end=1.0, lr_scheduler_type="constant")
    opt, schedule = config.build(net(), num_training_steps=10)
    block = opt._parameter_list[-3]
    got = [(opt.layerwise_ratio(block), schedule.step())[0] for _ in range(3)]
    assert got == pytest.approx([0.5, 0.55, 0.6], rel=1e-14)
    with pytest.raises(ValueError, match="the schedule does not have"):
        config.build(net())


def test_tables_and_plots_show_start_and_end(tmp_path):
    model = net()
    opt = made("adamwdl", model, layerwise_decay=LayerDecay(0.5, end=1.0, multipliers={"second": 2}))
    opt._learning_rate.step(1)
    layers = LayerMap.from_model(model)
    read, planned = layers.table(optimizer=opt), layers.table(LayerDecay(0.5, end=1.0), 0.1)
    assert [row.ratio[0] for row in read.rows] == pytest.approx([0.6**3, 0.6**2, 0.6, 1.0])
    ends = [end for row in read.rows for end in row.end_ratio]
    assert ends == pytest.approx([1, 1, 1, 2, 1, 2, 1, 1])
    assert [row.ratio[0] for row in planned.rows] == [0.125, 0.25, 0.5, 1.0] and "ratio at end" in str(planned)
    assert all(row.peak_learning_rate is None for row in itertools.chain(read.rows, planned.rows))
    layers.plot(str(tmp_path / "rates.svg"), LayerDecay(0.5, end=1.0))
    assert (tmp_path / "rates.svg").read_text().count('id="line2d_') > 4
    assert "ratio at end" not in str(layers.table(0.5))
