"""Any recipe, killed at any moment: it loses one save at most, and what is gone on from ends with the same bits."""

import importlib
import json
import os
import random
import shutil
import signal
import sys
import threading

import paddle
import processes
import pytest
from common.arguments import NoteArguments
from test_recipes import ENCODERS, OWN_TESTS, RECIPES, shorten

from paddle_ldopt.trainer import last_checkpoint

NAMES = sorted(set(RECIPES) - OWN_TESTS)
STEPS, SAVED_EVERY = 6, 2
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def watch(folder, moment):
    """Return a list that grows by what this process does to a folder's files; die at `moment`: event, seconds after."""
    seen = []

    def hook(event, args):
        opens = event == "open" and isinstance(args[0], (str, bytes)) and args[2] & WRITING
        changes = event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir")
        if (opens or changes) and os.fsdecode(args[0]).startswith(folder):
            seen.append(event)
            if moment is not None and len(seen) == moment[0]:
                threading.Timer(moment[1], die).start() if moment[1] else die()

    sys.addaudithook(hook)
    return seen


def child(name, argv, folder, moment, log):
    """Run a recipe; write "s" for each step that begins, and at the end "e" for each event, into the file `log`."""
    with open(log, "wb", buffering=0) as said:
        shorten(pytest.MonkeyPatch())
        step_begins = NoteArguments.on_step_begin

        def counted(*args, **kwargs):
            said.write(b"s")
            return step_begins(*args, **kwargs)

        NoteArguments.on_step_begin = counted
        seen = watch(folder, moment)
        importlib.import_module(name).main(argv)
        said.write(b"e" * len(seen))


def run(name, argv, folder, moment=None):
    """Run a recipe in a process of its own: return whether it was killed, its steps, and its events in the folder."""
    log, out = (folder.parent / f"{folder.name}.{kind}" for kind in ("log", "out"))
    process = processes.start(child, name, argv, str(folder), moment, str(log), log=out)
    process.join(600)
    if process.exitcode is None:
        process.kill()
        pytest.fail(f"{name} {argv} hangs")
    assert process.exitcode in (0, -signal.SIGKILL), out.read_text()[-3000:]
    said = log.read_bytes()
    return process.exitcode != 0, said.count(b"s"), said.count(b"e")


@pytest.fixture(scope="module")
def models(request):
    """Name of a recipe -> arguments that have it train a tiny model."""
    encoder, decoder = request.getfixturevalue("tiny"), request.getfixturevalue("tiny_llama")
    named = {**dict.fromkeys(ENCODERS, encoder), "language_model_sft": decoder}
    return {name: ["--model", named[name]] if name in named else [] for name in NAMES}


def six_steps(name, folder, models):
    argv = ["--max_steps", str(STEPS), "--save_steps", str(SAVED_EVERY), "--output_dir", str(folder), *models[name]]
    often = "--evaluation_strategy steps --eval_steps 2 --save_strategy steps --logging_steps 1 --disable_tqdm True"
    return [*argv, *often.split(), "--report_to", "none", "--early_stopping_patience", "9"]


@pytest.fixture(scope="module")
def unkilled(models, tmp_path_factory):
    """A function that runs a recipe to its end, once; it returns the folder and how many file events there were."""
    runs = {}

    def get(name):
        if name not in runs:
            folder = tmp_path_factory.mktemp(name) / "out"
            killed, steps, events = run(name, six_steps(name, folder, models), folder)
            assert not killed and steps == STEPS and events > 30
            runs[name] = folder, events
        return runs[name]

    return get


def left_by(folder):
    """Return what must be the same whether a run was killed or not."""
    lines = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    curves = [{k: v for k, v in line.items() if not k.endswith(("runtime", "per_second"))} for line in lines]
    results = json.loads((folder / "results.json").read_text())
    models = {
        str(path.relative_to(folder)): {key: value.numpy().tobytes() for key, value in paddle.load(str(path)).items()}
        for path in folder.rglob("*model_state.pdparams")
    }
    assert len(models) > 1
    return models, curves, {key: value for key, value in results.items() if "second" not in key}


def killed_and_resumed(unkilled, models, tmp_path, name, draw):
    """Kill a run at a moment that is drawn, in a save or elsewhere; go on as the README says; compare."""
    whole, events = unkilled(name)
    moment, folder = (draw.randint(1, events), draw.choice([0, draw.random() * 0.05])), tmp_path / "out"
    story = f"{name}: killed {moment[1]:.3f} s after file event {moment[0]} of {events}"
    killed, steps, _ = run(name, six_steps(name, folder, models), folder, moment)
    last = last_checkpoint(folder)
    kept = 0 if last is None else int(last.rpartition("-")[2])
    if killed:
        assert kept >= steps - 1 - SAVED_EVERY, story
        argv = six_steps(name, folder, models) if last is None else ["--resume_from_checkpoint", str(folder)]
        assert run(name, argv, folder)[:2] == (False, STEPS - kept), story
    left, expected = left_by(folder), left_by(whole)
    # a kill between the last save and the deletion of an old checkpoint leaves that one
    assert {name: model for name, model in left[0].items() if name in expected[0]} == expected[0], story
    assert left[1:] == expected[1:], story
    shutil.rmtree(folder)
    return killed


def moments(name):
    """Return a generator that decides the moments; KILL_SEED repeats them."""
    seed = int(os.environ.get("KILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"KILL_SEED={seed}")
    return random.Random(f"{name} {seed}")


@pytest.mark.promise(
    "a killed and restarted recipe loses at most one save interval and ends bit for bit like an uninterrupted run",
    seen="56 runs killed at random moments; all repeated once",
)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kills", [pytest.param(1, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.fault)])
@pytest.mark.parametrize("name", NAMES)
def test_a_killed_recipe_loses_at_most_one_save_and_ends_with_the_same_bits(unkilled, models, tmp_path, name, kills):
    draw = moments(name)
    killed = [killed_and_resumed(unkilled, models, tmp_path, name, draw) for _ in range(kills)]
    assert sum(killed) >= 4 or kills == 1, "the moments are within the run"
