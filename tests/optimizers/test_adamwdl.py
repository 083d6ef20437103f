"""AdamWDL: against AdamW in float64 NumPy, against Paddle's AdamW bit for bit, and every hook contract in the wild."""

import copy
import functools

import numpy as np
import paddle
import pytest
from optimizer_cases import close, same, states, static_graph
from reference import adamw, bert_like, llrd_ratio, make_params, needs_library, take_steps

from paddle_ldopt import AdamWDL
from paddle_ldopt.optimizers.adamwdl import adamw_update

N = 3  # blocks of bert_like()


@pytest.mark.parametrize("dtype, rtol", [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("layerwise_decay", [1.0, 0.8, 0.3])
def test_matches_the_float64_reference(dtype, rtol, layerwise_decay):
    arrays, grads = bert_like(steps=20)
    params, name_dict = make_params(arrays, dtype)
    how = {"layerwise_decay": layerwise_decay, "n_layers": N, "name_dict": name_dict, "weight_decay": 0.1}
    how["apply_decay_param_fun"] = lambda t: "bias" not in name_dict[t]
    opt = AdamWDL(0.01, parameters=list(params.values()), **how)
    got = take_steps(opt, params, grads)
    start = {n: a.astype(dtype) for n, a in arrays.items()}
    grads = [{n: g.astype(dtype) for n, g in grad.items()} for grad in grads]
    ratios = {n: llrd_ratio(n, layerwise_decay, N) for n in arrays}
    want = adamw(start, grads, ratios, lr=0.01, weight_decay=0.1, decayed=lambda n: "bias" not in n)
    if layerwise_decay == 1.0 and dtype == "float64":
        rtol = 1e-7  # plain AdamW, number for number: Paddle's kernel rounds the weight decay to float32
    close(got, want, start, rtol)


@pytest.mark.parametrize("fused", [pytest.param(True, marks=needs_library), False])
def test_the_specification_is_what_the_library_and_paddles_kernel_compute(fused):
    arrays, grads = bert_like(steps=5)
    params, _ = make_params(arrays, "float32")
    options = {"beta1": 0.9, "beta2": 0.999, "epsilon": 0.1, "weight_decay": 0.1}  # an epsilon that counts
    opt = AdamWDL(0.01, parameters=list(params.values()), fused=fused, **options)
    take_steps(opt, params, grads)
    want = {}
    for name, array in arrays.items():
        param = paddle.to_tensor(array, "float64")
        powers = {"beta1_pow_acc": paddle.full([], 0.9, "float64"), "beta2_pow_acc": paddle.full([], 0.999, "float64")}
        state = {"moment1": paddle.zeros_like(param), "moment2": paddle.zeros_like(param), **powers}
        for grad in grads:
            grad = paddle.to_tensor(grad[name], "float64")
            param, state = adamw_update(param, grad, state, paddle.full([], 0.01, "float64"), **options)
        want[name] = param.numpy()
    close({name: param.numpy() for name, param in params.items()}, want, arrays)


def test_without_a_ratio_or_with_1_it_is_paddles_adamw_bit_for_bit():
    arrays, grads = bert_like(steps=10)
    with_1 = {"set_param_lr_fun": lambda param: 1.0}  # in float64, weight decay is then not rounded to float32
    for dtype, ways in (("float32", ({}, with_1)), ("float64", ({},))):
        results = []
        for cls, how in ((paddle.optimizer.AdamW, {}), *((AdamWDL, {"fused": False, **way}) for way in ways)):
            params, _ = make_params(arrays, dtype)
            how = {**how, "weight_decay": 0.05, "grad_clip": paddle.nn.ClipGradByGlobalNorm(0.5)}
            opt = cls(0.01, 0.8, 0.99, 1e-6, parameters=list(params.values()), **how)
            results.append(take_steps(opt, params, grads))
        for result in results[1:]:
            same(result, results[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("fused", [pytest.param(True, marks=needs_library), False])
def test_weights_decay_under_a_16_bit_default_type(dtype, fused):
    linear = paddle.nn.Linear(3, 3, weight_attr=paddle.nn.initializer.Constant(1.0))
    linear.to(dtype=dtype)
    paddle.set_default_dtype(dtype)
    try:
        opt = AdamWDL(1e-3, parameters=[linear.weight], weight_decay=0.1, multi_precision=True, fused=fused)
        for _ in range(20):
            linear.weight.grad = paddle.zeros([3, 3], dtype)
            opt.step()
    finally:
        paddle.set_default_dtype("float32")
    (master,) = opt.state_dict()["master_weights"].values()
    np.testing.assert_allclose(1.0 - master.numpy(), 1.0 - (1.0 - 1e-4) ** 20, rtol=5e-3)


def half(param):
    return 0.5


def half_of_four(layerwise_decay, name_dict, n_layers, param):
    return layerwise_decay


def mutating(param):
    param.optimize_attr["learning_rate"] *= 0.5


def mutating_of_four(layerwise_decay, name_dict, n_layers, param):
    param.optimize_attr["learning_rate"] *= layerwise_decay


class Half:
    def hook(self, param):
        return 0.5

    def __call__(self, layerwise_decay, name_dict, n_layers, param):
        return layerwise_decay


HOOKS = {
    "returns": half,
    "returns, 4 arguments": half_of_four,
    "mutates": mutating,
    "mutates, 4 arguments": mutating_of_four,
    "method": Half().hook,
    "object": Half(),
    "partial": functools.partial(half_of_four, 0.5, None, 12),
    "partial by keyword": functools.partial(half_of_four, layerwise_decay=0.5, name_dict=None, n_layers=12),
    "one argument and defaults": lambda param, scale=0.5, other=None, more=None: scale,
    "any number of arguments": lambda *args: args[0],
    "Tensor": lambda param: paddle.to_tensor(0.5),
    "Tensor of shape [1]": lambda param: paddle.to_tensor([0.5]),
    "NumPy number": lambda param: np.float32(0.5),
}
OF_FOUR = ("returns, 4 arguments", "mutates, 4 arguments", "object", "any number of arguments", "partial")
SEE_THE_DECAY = [HOOKS[kind] for kind in OF_FOUR]


@pytest.mark.filterwarnings("ignore:The hook gives all")
@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS)
def test_hook_contracts(hook):
    arrays, grads = bert_like()
    params, _ = make_params(arrays)
    decay = {"layerwise_decay": 0.5} if hook in SEE_THE_DECAY else {}
    opt = AdamWDL(0.01, parameters=list(params.values()), set_param_lr_fun=hook, **decay)
    got = take_steps(opt, params, grads)
    close(got, adamw(arrays, grads, dict.fromkeys(arrays, 0.5), lr=0.01), arrays, 2e-5)
    assert all(p.optimize_attr["learning_rate"] == 1.0 for p in params.values()), "ratios must not compound"


@pytest.mark.filterwarnings("ignore:The hook gives all")
@pytest.mark.parametrize("kind", [kind for kind in HOOKS if HOOKS[kind] not in SEE_THE_DECAY] + ["partial"])
@pytest.mark.parametrize("name", ["set_param_lr_fun", "lr_ratio"])
def test_a_decay_that_the_hook_cannot_see_is_refused(kind, name):
    params, _ = make_params(bert_like()[0])
    how = {"parameters": list(params.values()), name: HOOKS[kind]}
    with pytest.raises(ValueError, match="see `layerwise_decay`.*Received: layerwise_decay=0.8, set_param_lr_fun="):
        AdamWDL(0.01, layerwise_decay=0.8, **how)
    AdamWDL(0.01, layerwise_decay=1.0, **how)
    if "partial" in kind:  # it has seen this one
        AdamWDL(0.01, layerwise_decay=0.5, **how)


@pytest.mark.parametrize("fused", [None, False])
@pytest.mark.parametrize("clip", [None, paddle.nn.ClipGradByValue(9.0)], ids=["", "clipped"])
@pytest.mark.parametrize(
    "base, own, rate",
    [(0.01, 0.5, 0.005), (0.01, paddle.to_tensor(0.02), 0.02), (0.0, paddle.to_tensor(0.02), 0.02), (0.01, None, 0.01)],
    ids=["factor", "absolute", "absolute beside 0", "none"],
)
def test_a_rate_of_a_parameters_own_counts_beside_the_hooks(base, own, rate, clip, fused):
    param = paddle.ones([3])  # a Tensor that is no layer's has no `optimize_attr`
    param.stop_gradient = False
    if own is not None:
        param = paddle.create_parameter([3], "float32", default_initializer=paddle.nn.initializer.Constant(1.0))
        param.optimize_attr["learning_rate"] = own
    hook = {"set_param_lr_fun": lambda param: 0.25}
    opt = AdamWDL(base, parameters=[param], weight_decay=0.0, grad_clip=clip, fused=fused, **hook)
    param.grad = paddle.ones([3])
    opt.step()
    np.testing.assert_allclose(1.0 - param.numpy(), 0.25 * rate, rtol=1e-4)


@pytest.mark.parametrize("fused", [None, False])
def test_a_group_that_is_added_is_updated_as_by_paddle(fused):
    seen = []
    for cls, more in ((AdamWDL, {"fused": fused}), (paddle.optimizer.AdamW, {})):
        arrays, grads = bert_like()
        params, _ = make_params(arrays)
        *early, late = params.values()
        opt = cls(0.01, parameters=[{"params": early}], **more)
        opt._add_param_group({"params": [late], "learning_rate": 0.5, "weight_decay": 0.3})
        seen.append(take_steps(opt, params, grads))
        if cls is AdamWDL:
            copied = copy.deepcopy(opt)
            assert copied.state_of(copied._param_groups[1]["params"][0])["moment1"].numpy().any()
    close(*seen, arrays)


def test_a_decay_that_would_do_nothing_is_refused_and_blocks_that_the_default_hook_passes_over_are_named():
    llama = {"llama.embed_tokens.weight": np.ones((3, 2)), "llama.layers.0.mlp.up_proj.weight": np.ones((2, 2))}
    params, name_dict = make_params(llama)
    with pytest.raises(ValueError, match="finds none.*from_model.*Received: parameters 'llama.embed_tokens.weight'"):
        AdamWDL(0.01, parameters=list(params.values()), layerwise_decay=0.8, name_dict=name_dict)
    bart = {f"bart.{part}.layers.{i}.fc1.weight": np.ones((2, 2)) for part in ("encoder", "decoder") for i in range(2)}
    params, name_dict = make_params(bart)
    with pytest.warns(UserWarning, match=r"bart.decoder.layers.0, bart.decoder.layers.1"):
        AdamWDL(0.01, parameters=list(params.values()), layerwise_decay=0.8, n_layers=2, name_dict=name_dict)
    with static_graph():
        linear = paddle.nn.Linear(3, 2)
        names = {p.name: n for n, p in linear.named_parameters()}
        loss = linear(paddle.static.data("x", [4, 3])).mean()
        with pytest.raises(ValueError, match="finds none"):
            AdamWDL(0.01, layerwise_decay=0.8, name_dict=names).minimize(loss)


@pytest.mark.parametrize("grouped", [False, True])
def test_a_hook_that_goes_bad_in_mid_run_changes_nothing_in_that_step(grouped):
    arrays, grads = bert_like(steps=2)
    params, name_dict = make_params(arrays)
    ratio = {"last": 1.0}
    parameters = [{"params": [p]} for p in params.values()] if grouped else list(params.values())
    hook = {"set_param_lr_fun": lambda p: ratio["last"] if "classifier" in name_dict[p.name] else 1.0}
    opt = AdamWDL(0.01, parameters=parameters, **hook)
    take_steps(opt, params, grads[:1])
    before, state = {n: p.numpy().copy() for n, p in params.items()}, states(opt)
    ratio["last"] = float("nan")
    with pytest.raises(ValueError, match="Received: nan"):
        take_steps(opt, params, grads[1:])
    same({n: p.numpy() for n, p in params.items()}, before)
    same(states(opt), state)


def test_a_parameter_unfrozen_in_mid_run_is_asked_for():
    arrays, grads = bert_like(steps=2)
    params, name_dict = make_params(arrays)
    late = params["bert.pooler.dense.weight"]
    late.stop_gradient = True
    del name_dict[late.name]
    opt = AdamWDL(0.01, parameters=list(params.values()), layerwise_decay=0.8, n_layers=N, name_dict=name_dict)
    trained = [{n: g for n, g in grad.items() if "pooler" not in n} for grad in grads]
    take_steps(opt, params, trained[:1])
    late.stop_gradient = False
    with pytest.raises(ValueError, match=f"lacks '{late.name}'"):
        take_steps(opt, params, grads[1:])
