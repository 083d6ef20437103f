"""Where the tests run: on the device in LDOPT_DEVICE, on older versions of Paddle, in several processes.

What a device or version does otherwise or cannot do is named here: tests that show it are skipped, with the reason.
"""

import collections
import gc
import os
import pathlib
import re

import paddle
import pytest
from representatives import mark_the_rest_slow

FIRST = {  # reason -> (first Paddle without it, pattern of the tests' ids)
    "Paddle cannot build a single pipeline stage with tied weights": (
        (3, 2),
        r"test_it_is_a_direct_computation_on_the_whole_batch|test_wrong_networks_and",
    ),
    "Checkpoints for any layout need Paddle 3.2": (
        (3, 2),
        r"test_doctests\[.*parallel.checkpoint|blocks_run\[docs/checkpoints|state_that_would_be_lost|test_parallel_checkpoints|for_any_layout_is",
    ),
    "Paddle warns of TF32 in LBFGS": ((3, 2), r"asks_for_no_rates.*LBFGS"),
    "Paddle gives a parameter another name with other data": (
        (3, 3),
        r"test_a_square_that_was_transposed_in_place|test_a_parameter_that_was_cast_in_place",
    ),
}
ON_CPU = {  # reason -> pattern of the ids of tests that hold on a CPU only
    "The C library steps on a CPU": r"paddles_kernel_compute\[True|16_bit_default_type\[True|true_is_refused_in_shards",
    "Paddle has bfloat16 products elsewhere": r"bfloat16_products_on_a_cpu_are_refused",
    "Paddle counts the memory of the host": r"the_memory_of_a_step_is_bounded|a_step_keeps_no_gradient",
}
AS_CUDA = {  # the same for a device that only says that it is a GPU
    "Paddle's to_static asks CUDA for pinned memory": r"test_to_static|advances_under_to_static",
    "CUDA has a kernel for them": r"test_sparse_gradients_are_refused.*\[adamwdl\]",
}
LONGEST = ["distributed", "recipes", "trainer", "robustness"]  # folders whose files take longest
HERE = pathlib.Path(__file__).parent
VERSION = tuple(int(part) for part in re.findall(r"\d+", paddle.__version__)[:2])


def pytest_configure():
    """Put all tensors on the device in LDOPT_DEVICE, or stop: tests on another one would prove nothing."""
    device = os.environ.get("LDOPT_DEVICE")
    if not device:
        return
    if os.environ.get("LDOPT_AS_CUDA"):  # the device says that it is a GPU
        paddle.is_compiled_with_cuda = lambda: True
        paddle.base.core.Place.is_gpu_place = lambda self: not self.is_cpu_place()
        paddle.base.core.gpu_memory_available = lambda: 2**40  # `Layer.to` asks for it
        paddle.base.core.get_cuda_device_count = lambda: 0  # `paddle.seed` asks for it
    try:
        paddle.set_device(device)
        on = paddle.ones([2]).square().place
    except (ValueError, RuntimeError, OSError) as error:
        reason = (str(error).strip() or "no reason given").splitlines()[-1].rstrip(".")
        wrong = f"Paddle cannot use this device: {reason}. Install a Paddle for it, or set LDOPT_DEVICE=cpu."
        raise pytest.UsageError(f"{wrong} Received: LDOPT_DEVICE={device}") from None
    print(f"LDOPT_DEVICE={device}: tensors are on {on}")


@pytest.hookimpl(tryfirst=True)  # before tests are deselected
def pytest_collection_modifyitems(config, items):
    """Choose what `make test` runs; begin with the longest files; skip what cannot hold on this Paddle."""
    names = ((item.path.relative_to(HERE).as_posix(), getattr(item, "originalname", "")) for item in items)
    config.cases = collections.Counter(names)  # for docs/test_docs.py
    mark_the_rest_slow(items)
    places = {folder: place for place, folder in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.parent.name, len(places)))
    lacking = [(reason, *found) for reason, found in FIRST.items() if (0, 0) < VERSION < found[0]]  # 0.0.0: a nightly
    reasons = [(f"{reason} (below {first[0]}.{first[1]})", pattern) for reason, first, pattern in lacking]
    if os.environ.get("LDOPT_DEVICE", "cpu") != "cpu":
        reasons += [*ON_CPU.items(), *(AS_CUDA.items() if os.environ.get("LDOPT_AS_CUDA") else ())]
    for reason, pattern in reasons:
        for item in items:
            if re.search(pattern, item.nodeid):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish():
    """Spare the garbage collector all modules and tests: Paddle calls it whenever it loads a checkpoint."""
    gc.collect()
    gc.freeze()
