"""`sharded_state_dict` of every optimizer: which keys, shapes and places a layout is told, in one process."""

import numpy as np
import paddle
import pytest
from optimizer_cases import every_variant, make

pytest.importorskip("paddle.distributed.flex_checkpoint.dcp.sharded_weight", reason="Paddle 3.2 has it first")


def network():
    """Return a matrix, which is also tied to a second name, a batch of matrices, a vector, a frozen vector."""
    model = paddle.nn.Layer()
    shapes = {"matrix": [4, 6], "batch": [2, 4, 6], "vector": [5], "frozen": [3]}
    for name, shape in shapes.items():
        setattr(model, name, model.create_parameter(shape))
    model.frozen.stop_gradient = True
    model.tied = paddle.nn.Layer()
    model.tied.weight = model.matrix
    return model


def trained(variant, steps=1, **more):
    paddle.seed(0)
    model = network()
    opt = make(variant, model.parameters(), **more)
    for _ in range(steps):
        for param in (model.matrix, model.batch, model.vector):
            param.grad = paddle.ones_like(param) * 0.1
        opt.step()
    return model, opt


@every_variant
@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("prefix", [None, "mine"])
def test_all_state_has_its_place(name, steps, prefix):
    model, opt = trained(name, steps=steps, name=prefix)
    found = opt.sharded_state_dict(model.sharded_state_dict())
    expected = {}
    for key, param in (("matrix", model.matrix), ("batch", model.batch), ("vector", model.vector)):
        shape = tuple(param.shape)
        shapes = {"element": shape, "row": shape[:-1], "column": (*shape[:-2], shape[-1]), "scalar": (1,)}
        for name, state in opt.states_of(param).items():
            expected[f"{key}.{name}_0"] = shapes[state.per]
    assert {key: weight.global_shape for key, weight in found.items()} == expected
    held = {id(value) for values in opt._accumulators.values() for value in values.values()}
    for key, weight in found.items():
        assert weight.key == key and weight.local_shape == weight.global_shape
        assert weight.global_offset == (0,) * len(weight.global_shape) and not weight.is_flattened
        assert id(weight.local_tensor) in held, "a load is to fill the optimizer's own tensors"


@every_variant
def test_shards_of_a_flattened_parameter(name):
    model, opt = trained(name)
    weights = model.sharded_state_dict()
    elements = [key for key, state in opt.states_of(model.vector).items() if state.per == "element"]
    for state in elements:  # what sharding makes of a slice: flat, and padded
        opt._accumulators[state][model.vector.name] = paddle.arange(4, dtype="float32")
    found = opt.sharded_state_dict(weights, {model.vector.name: (2, 5)})
    assert {key.partition(".")[0] for key in found} == {"vector"}, "of the matrix there is nothing here"
    for state in elements:
        weight = found[f"vector.{state}_0"]
        assert weight.is_flattened and weight.flattened_range == slice(2, 5)
        np.testing.assert_array_equal(weight.local_tensor.numpy(), [0.0, 1.0, 2.0])
        assert weight.global_shape == (5,)
    with pytest.raises(ValueError, match=r"Received: 4 elements, not 5"):
        opt.sharded_state_dict(weights)
