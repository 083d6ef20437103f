"""`lr_ratio` of every optimizer, called as ERNIEKit's `create_optimizer` calls its `optimizer_cls`."""

import numpy as np
import paddle
import pytest

import paddle_ldopt as ldopt

SIZES = {"ernie.embed_tokens.weight": [5, 4], "ernie.layers.1.mlp.weight": [4, 4], "lm_head.bias": [4]}
RATIOS = {"ernie.embed_tokens.weight": 0.25, "ernie.layers.1.mlp.weight": 0.4375, "lm_head.bias": 1.0}
FIXED_RATE = {"adafactor": {"relative_step": False}}  # it sets its rate itself by default


def made(names):
    """Return name -> parameter with values of its own."""
    with paddle.utils.unique_name.guard():
        params = {name: paddle.create_parameter(SIZES[name], "float32") for name in names}
    for name, param in params.items():
        param.set_value(np.random.RandomState(len(name)).randn(*SIZES[name]).astype("float32"))
    return params


def trained(optim, params, rate, lr_ratio=None, steps=3):
    """Return the parameters after a few steps."""
    optimizer = ldopt.optimizer_class(optim)(
        learning_rate=paddle.optimizer.lr.LambdaDecay(rate, lambda step: 1.0),
        apply_decay_param_fun=lambda name: True,
        parameters=list(params.values()),
        weight_decay=0.1,
        grad_clip=paddle.nn.ClipGradByGlobalNorm(1e9),
        lr_ratio=lr_ratio,
        **FIXED_RATE.get(optim, {}),
    )
    for step in range(steps):
        for name, param in params.items():
            param.grad = paddle.to_tensor(np.random.RandomState(10 * step + len(name)).randn(*SIZES[name]), "float32")
        optimizer.step()
    return {name: param.numpy() for name, param in params.items()}


@pytest.mark.parametrize("optim", ldopt.list_optimizers())
def test_each_parameter_is_trained_as_if_alone_at_its_own_rate(optim):
    params = made(SIZES)
    names = {id(param): name for name, param in params.items()}
    got = trained(optim, params, 0.01, lambda param: RATIOS[names[id(param)]])
    for name, ratio in RATIOS.items():
        alone = trained(optim, made([name]), 0.01 * ratio)
        np.testing.assert_allclose(got[name], alone[name], rtol=1e-5, atol=1e-7, err_msg=name)
    assert np.abs(got["lm_head.bias"] - trained(optim, made(SIZES), 0.02)["lm_head.bias"]).max() > 1e-4


@pytest.mark.parametrize("optim", ldopt.list_optimizers())
def test_it_excludes_a_hook_of_another_name(optim):
    given = {"learning_rate": 0.01, "parameters": list(made(SIZES).values()), **FIXED_RATE.get(optim, {})}
    with pytest.raises(ValueError, match="give one of them. Received: set_param_lr_fun=.*lr_ratio="):
        ldopt.optimizer_class(optim)(**given, lr_ratio=lambda param: 0.5, set_param_lr_fun=lambda param: 0.25)
    with pytest.raises(TypeError, match="Received: (lr_ratio|set_param_lr_fun)=0.5"):
        ldopt.optimizer_class(optim)(**given, lr_ratio=0.5)
