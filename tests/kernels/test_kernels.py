"""The C library: against the float64 references, and what it promises about bits, threads, modes and memory."""

import multiprocessing
import os
import pathlib
import shutil
import subprocess
import sys
import types

import kernel_cases
import numpy as np
import paddle
import pytest
from kernel_cases import TYPES, VARIANTS, Optimizer, decode, encode, problem
from reference import needs_library

from paddle_ldopt import AdamWDL, kernels

pytestmark = needs_library
PACKAGE = pathlib.Path(kernels.__file__).parent.parent
PATHS = [str(PACKAGE), str(pathlib.Path(kernel_cases.__file__).parent)]
every_variant = pytest.mark.parametrize("name", VARIANTS)


def make(name, arrays, **more):
    rule, options = VARIANTS[name]
    return Optimizer(kernels, rule, arrays, **{**options, **more})


def train(name, arrays, grads, threads=None, **more):
    optimizer = make(name, arrays, **more)
    for grad in grads:
        optimizer.step(grad, threads)
    return optimizer


@every_variant
def test_the_bits_depend_on_neither_threads_nor_the_run_nor_the_address(name):
    arrays, grads = problem(steps=3)
    want = train(name, arrays, grads, threads=1).bits()
    for threads in (1, 2, 3, 4):
        assert train(name, arrays, grads, threads=threads, offset=threads - 1).bits() == want


@every_variant
def test_tensors_do_not_depend_on_their_neighbours(name):
    arrays, grads = problem(steps=2)
    together = train(name, arrays, grads).weights()
    for n in arrays:
        alone = train(name, {n: arrays[n]}, [{n: grad[n]} for grad in grads]).weights()[n]
        np.testing.assert_array_equal(alone, together[n], err_msg=n)


def test_a_small_omp_stacksize_is_enough():
    code = (
        f"import sys; sys.path[:0] = {PATHS!r}\n"
        "import kernels; from kernel_cases import Optimizer, VARIANTS, problem\n"
        "arrays, grads = problem(steps=1)\n"
        "for rule, options in VARIANTS.values():\n"
        "    for kind in ('float32', 'bfloat16'):\n"
        "        Optimizer(kernels, rule, arrays, param_type=kind, grad_type=kind, **options).step(grads[0], 2)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "OMP_STACKSIZE": "16K"}
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=120, check=True)


def test_the_norm_of_all_gradients():
    arrays, grads = problem(steps=1)
    norms = {make("lamb", arrays).step(grads[0], threads) for threads in (1, 2, 3, 4)}
    want = np.sqrt(sum(np.sum(np.square(g, dtype="float64")) for g in grads[0].values()))
    assert len(norms) == 1
    np.testing.assert_allclose(norms.pop(), want, rtol=1e-7)


@pytest.mark.representatives
@pytest.mark.parametrize("dtype", TYPES[1:])
@every_variant
def test_masters_are_what_float32_weights_become(name, dtype):
    arrays, grads = problem(steps=3)
    grads = [{n: decode(encode(g, dtype), dtype) for n, g in grad.items()} for grad in grads]
    plain, low = make(name, arrays), make(name, arrays, param_type=dtype, grad_type=dtype, masters=True)
    for grad in grads:
        plain.step(grad)
        low.step(grad)
    for n in arrays:
        if name == "adamw":  # Paddle's kernel rounds the betas to float32 first, where it is there
            np.testing.assert_allclose(low.arrays[n]["param"], plain.arrays[n]["param"], rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(low.arrays[n]["param"], plain.arrays[n]["param"], err_msg=n)
        np.testing.assert_array_equal(low.arrays[n]["copy"], encode(low.arrays[n]["param"], dtype), err_msg=n)


@pytest.mark.representatives
@pytest.mark.parametrize("dtype", TYPES[1:])
@every_variant
def test_without_masters_each_step_rounds_once(name, dtype):
    arrays, grads = problem(steps=3)
    low, plain = make(name, arrays, param_type=dtype), make(name, arrays, masters=True)
    for grad in grads:
        for n in arrays:
            plain.arrays[n]["param"][...] = low.weights()[n]
        low.step(grad)
        plain.step(grad)
        for n in arrays:
            want = encode(plain.arrays[n]["param"], dtype)
            np.testing.assert_array_equal(low.arrays[n]["param"], want, err_msg=n)


@pytest.mark.parametrize("dtype", TYPES[1:])
def test_rounding_is_to_nearest_even(dtype):
    rng = np.random.default_rng(0)
    every = np.arange(1 << 16, dtype="u2")
    numbers = decode(every if dtype == "bfloat16" else every.view("float16"), dtype)
    halfway = numbers.view("u4") + np.uint32(0x8000 if dtype == "bfloat16" else 0x1000)
    bits = [numbers.view("u4"), halfway, halfway - 1, halfway + 1, rng.integers(0, 1 << 32, 100000).astype("u4")]
    values = np.concatenate(bits).view("float32")
    values = values[np.isfinite(values) & (np.abs(values) > 1e-37)]  # below, the step flushes
    optimizer = Optimizer(kernels, "adamw", {"w": values}, param_type=dtype, masters=True, lr=0.0)
    optimizer.step({"w": np.ones_like(values)})
    np.testing.assert_array_equal(optimizer.arrays["w"]["param"], values)
    np.testing.assert_array_equal(optimizer.arrays["w"]["copy"], encode(values, dtype))


def test_compressed_momentum_is_rounded_after_the_step():
    arrays, grads = problem(steps=4)
    plain, low = make("came", arrays), make("came", arrays, moment_type="float16")
    for grad in grads:
        for n, held in low.arrays.items():
            plain.arrays[n][2][...] = held[2]
        low.step(grad)
        plain.step(grad)
        for n, held in low.arrays.items():
            np.testing.assert_array_equal(held["param"], plain.arrays[n]["param"], err_msg=n)
            m = plain.arrays[n][2].astype("float64")
            towards_0 = np.trunc(m * 2.0**24) * 2.0**-24
            np.testing.assert_array_equal(held[2], np.where(np.abs(m) < 2.0**-14, towards_0, m).astype("float16"), n)


def test_compressed_momentum_saturates():
    arrays = {"w": np.zeros(100000, "float32"), "matrix": np.zeros((300, 300), "float32")}
    grads = {n: np.zeros(a.shape, "float32") for n, a in arrays.items()}
    for grad in grads.values():
        grad.flat[0], grad.flat[-1] = 1.0, -1.0
    optimizer = make("came", arrays, moment_type="float16", clip=1e9, beta1=0.0)
    for held in optimizer.arrays.values():  # 0.9 of these is above the largest float16, were it not for the beta
        held[2].flat[0] = 65504
    optimizer.tensors["beta1"] = 1.5
    optimizer.step(grads)
    for held in optimizer.arrays.values():
        assert held[2].flat[0] == 65504 and np.isfinite(held[2]).all()


def test_the_mode_for_denormal_numbers_is_restored():
    tiny = np.float32(1e-40)
    assert tiny * np.float32(1.0) > 0
    arrays, grads = problem(steps=1)
    train("lamb", arrays, grads)
    assert tiny * np.float32(1.0) > 0 and np.array([tiny] * 100) @ np.ones(100, "float32") > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_works_alone():
    arrays, grads = problem(steps=2)
    want = train("came", arrays, grads, threads=2).bits()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()

    def child():
        queue.put(train("came", arrays, grads, threads=2).bits() == want)

    process = context.Process(target=child)
    process.start()
    assert queue.get(timeout=60)  # with the parent's threads it would wait for ever
    process.join(60)
    assert process.exitcode == 0
    assert train("came", arrays, grads, threads=2).bits() == want


@pytest.mark.parametrize(
    ("part", "other"),
    [("TENSOR", np.dtype([("param", "u8")])), ("zlib", types.SimpleNamespace(crc32=lambda sources: 1))],
    ids=["structs", "sources"],
)
def test_a_library_of_another_version_is_refused(part, other, monkeypatch):
    path = kernels.library()._name
    kernels.load(path)
    monkeypatch.setattr(kernels, part, other)
    with pytest.raises(OSError, match="belongs to another version of the package"):
        kernels.load(path)


def test_a_library_is_found_in_any_folder_and_one_that_is_missing_or_broken_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(kernels, "_FOLDER", tmp_path)
    assert "was not built: install a C compiler" in kernels.found.__wrapped__()[1]
    (tmp_path / "libstep.so").write_bytes(b"no library")
    assert "cannot be loaded: " in kernels.found.__wrapped__()[1]
    shutil.copytree(PACKAGE / "kernels", tmp_path / "run[1]" / "kernels")  # a folder may have any name
    says = "import kernels; print(kernels.found()[1] or kernels.__file__)"
    done = subprocess.run([sys.executable, "-c", says], cwd=tmp_path / "run[1]", capture_output=True, text=True)
    assert "run[1]" in done.stdout, done.stdout + done.stderr


def test_memory_that_the_library_does_not_get(monkeypatch):
    failing = types.SimpleNamespace(ldopt_step=lambda *_: 1, ldopt_square_sum=lambda *_: -1)
    monkeypatch.setattr(kernels, "library", lambda: failing)
    param = paddle.create_parameter([2], "float32")
    param.grad = paddle.ones([2])
    with pytest.raises(MemoryError, match="nothing was updated"):
        AdamWDL(0.1, parameters=[param]).step()
    with pytest.raises(MemoryError, match="The norm"):
        kernels.norm(np.zeros(1, kernels.TENSOR))
