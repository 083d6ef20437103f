"""Paddle's .pdopt: exact numbers, no code run, damage."""

import os
import pickle
import struct

import numpy as np
import paddle
import pytest
from saving_cases import ALL, CASES, HALF, SLOW, Run, bits, each_damage, read, refused, same

import paddle_ldopt as ldopt


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("case", CASES)
def test_a_pdopt_is_loaded_exactly(case, protocol, tmp_path):
    run = Run(case).train(HALF)
    paddle.save(run.optimizer.state_dict(), str(tmp_path / "a.pdopt"), protocol=protocol)
    again = Run(case).with_weights_of(run)
    report = ldopt.load_optimizer(tmp_path / "a.pdopt", again.optimizer)
    assert len(report.matched) == len(run.model.parameters())
    assert same(run.state(), again.state())
    assert same(run.train(ALL).everything(), again.train(ALL).everything())


def test_a_pdopt_of_paddles_own_adamw_is_loaded(tmp_path):
    run = Run("adamwdl", layerwise=False)
    run.optimizer = paddle.optimizer.AdamW(1e-3, parameters=run.model.parameters())
    run.train(HALF)
    paddle.save(run.optimizer.state_dict(), str(tmp_path / "a.pdopt"))
    again = Run("adamwdl", layerwise=False, fused=False).with_weights_of(run)
    ldopt.load_optimizer(tmp_path / "a.pdopt", again.optimizer)
    assert same(run.train(ALL).values(), again.train(ALL).values())


def test_a_pdopt_with_another_schedule_or_other_names_is_refused(tmp_path):
    run = Run("lamb", rate=paddle.optimizer.lr.StepDecay(1e-3, 2)).train(HALF)
    paddle.save(run.optimizer.state_dict(), str(tmp_path / "a.pdopt"))
    other = Run("lamb", seed=1).train(1)
    with refused("changed=.'schedule'.", ValueError, other):
        ldopt.load_optimizer(tmp_path / "a.pdopt", other.optimizer)
    ldopt.load_optimizer(tmp_path / "a.pdopt", other.optimizer, changed=["schedule"])
    other = Run("lamb", guard=False)
    with refused("has entries that this optimizer lacks", ValueError, other):
        ldopt.load_optimizer(tmp_path / "a.pdopt", other.optimizer)


def test_a_schedules_state_has_numbers_also_of_numpy(tmp_path):
    """The rates of a schedule that computes with NumPy are NumPy's numbers."""
    path, rate = str(tmp_path / "a.pdopt"), paddle.optimizer.lr.StepDecay(1e-3, 2)
    run, other = Run("lamb", rate=rate).train(HALF), Run("lamb", rate=paddle.optimizer.lr.StepDecay(1e-3, 2), seed=1)
    state = run.optimizer.state_dict()
    for odd in (np.zeros(2), [0.25, np.zeros(2)]):
        paddle.save({**state, "LR_Scheduler": {"last_epoch": 3, "last_lr": odd}}, path)
        with refused("schedule's state must be numbers", ValueError, other):
            ldopt.load_optimizer(path, other.optimizer)
    paddle.save({**state, "LR_Scheduler": {"last_epoch": 3, "last_lr": np.float64(0.25)}}, path)
    ldopt.load_optimizer(path, other.optimizer)
    assert other.optimizer.get_lr() == 0.25 and type(other.optimizer.get_lr()) is float


class Runs:
    """What a hostile pickle may ask for."""

    def __init__(self, function, *arguments):
        self.asks = function, arguments

    def __reduce__(self):
        return self.asks


def hostile_pickles(mark):
    """Yield (what, bytes); all would make the folder `mark` if they were run."""
    states = {"a": Runs(os.mkdir, mark)}
    for protocol in range(6):
        yield f"a call, protocol {protocol}", pickle.dumps(states, protocol)
        yield f"an eval, protocol {protocol}", pickle.dumps(Runs(eval, f"__import__('os').mkdir({mark!r})"), protocol)
    make = f"__import__('os').mkdir({mark!r})"
    yield "a call by text", b"cos\nmkdir\n(V" + mark.encode() + b"\ntR."
    yield "an instance", b"(V" + mark.encode() + b"\nios\nmkdir\n."
    yield "an object", b"(cos\nmkdir\nV" + mark.encode() + b"\no."
    yield "a dotted name", b"\x80\x04\x8c\x05numpy\x8c\x0bf2py.os.mkdr\x93."
    yield "numpy's loader", b"cnumpy.lib.format\nread_array\n(tR."
    yield "numpy's tests", b"cnumpy.testing._private.utils\nrunstring\n(V" + make.encode() + b"\n}tR."
    yield "a change of a class", b"\x80\x04cnumpy\ndtype\n}\x8c\x05build\x8c\x01xsb."
    yield "a change of a function", b"\x80\x04cnumpy.core.multiarray\n_reconstruct\n}\x8c\x05abcde\x8c\x01xsb."
    yield "a call of a class that is only named", b"\x80\x04cnumpy\nndarray\n)R."
    yield "a call of a dict", b"})R."
    yield "arguments in a dict", b"cbuiltins\ntuple\n}R."
    yield "a deep tuple as a type", b"cnumpy\ndtype\n)" + b"\x85" * 200_000 + b"R."
    yield "bytes in another encoding", b"c_codecs\nencode\n(Vx\nVutf-7\ntR."
    yield "a persistent object", b"Vx\nQ."
    yield "an extension", b"\x82\x01."
    yield "objects", pickle.dumps({"a": np.array([Runs(os.mkdir, mark)], dtype=object)})
    large = pickle.dumps({"a": np.zeros(4, "f4")}).replace(b"K\x04\x85", b"J\xff\xff\xff\x7f\x85")
    yield "a large array in few bytes", large
    yield "records", pickle.dumps({"a": np.zeros(2, [("x", "f4")])})
    yield "the wrong byte order", pickle.dumps({"a": np.zeros(2, ">f4")})
    yield "text", pickle.dumps({"a": np.array(["x"])})
    yield "a list", pickle.dumps([1, 2])
    yield "numbers", pickle.dumps({"linear_0.w_0_moment1_0": 1.0})
    yield "keys that are no text", pickle.dumps({(1, 2): 3})
    yield "a huge memo", b"\x80\x04}r\xff\xff\xff\x7f\x8c\x01aK\x01s."
    yield "a huge string", b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx."
    yield "a dict in itself", b"\x80\x04}\x94\x8c\x0cLR_Scheduler\x94h\x00s."
    yield "nothing", b""
    yield "no pickle", b"hello"
    yield "safetensors", struct.pack("<Q", 2) + b"{}"


@pytest.mark.promise("reading a `.pdopt` runs no code")
def test_no_code_in_a_pdopt_is_run(tmp_path, victim):
    mark, path, count = str(tmp_path / "ran"), str(tmp_path / "a.pdopt"), 0
    for what, content in hostile_pickles(mark):
        with open(path, "wb") as file:
            file.write(content)
        with refused("", ValueError, victim, what):
            ldopt.load_optimizer(path, victim.optimizer)
        assert not os.path.exists(mark), what
        count += 1
    assert count > 35
    pickle.loads(next(iter(hostile_pickles(mark)))[1])  # it is a payload indeed
    assert os.path.exists(mark)


@pytest.mark.promise(
    "a damaged `.pdopt` is refused, or loads with wrong numbers (it has no checksum)", seen="2,300 damaged files"
)
@pytest.mark.parametrize("flips, cuts, least", [(60, 20, 40), pytest.param(2000, 300, 1000, marks=SLOW)])
def test_a_damaged_pdopt_is_refused_or_loads_numbers(tmp_path, flips, cuts, least):
    run = Run("lamb").train(HALF)
    path, draw, refusals = str(tmp_path / "a.pdopt"), np.random.default_rng(0), 0
    paddle.save(run.optimizer.state_dict(), path)
    victim = Run("lamb", seed=1)
    sound = read(path)
    for what, damaged in each_damage(sound, draw, flips, cuts):
        if damaged == sound:  # what is cut up by safetensors' header
            continue
        with open(path, "wb") as file:
            file.write(damaged)
        before = bits(victim.everything())
        try:  # it has no checksum: a flipped bit of a number is not noticed, as in Paddle
            ldopt.load_optimizer(path, victim.optimizer)
        except ValueError as error:
            assert "Received:" in str(error) and bits(victim.everything()) == before, what
            refusals += 1
        else:
            assert "flipped" in what
    assert refusals > least
