"""A Trainer's run with damaged files, on a full disk, in a folder that cannot be written into, by a wrong clock."""

import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import subprocess
import time
import types
import warnings

import pytest
import trainer_common as common

from paddle_ldopt.trainer import last_checkpoint, record

FILES = "ldopt_files.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of nine steps with a checkpoint every two, which nothing disturbed, and the weights at its end."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, common.weights(run(folder).model)


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of that run, as it was after the checkpoint of step 6."""
    for step in (2, 4, 6):
        shutil.copytree(whole[0] / f"checkpoint-{step}", tmp_path / f"run/checkpoint-{step}")
    return tmp_path / "run"


def run(folder, resume=None, **kwargs):
    return common.run(folder, resume=resume, **{"max_steps": 9, "save_steps": 2, **kwargs})


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def steps(folder):
    return sorted(int(name.rpartition("-")[2]) for name in os.listdir(folder) if name.startswith("checkpoint-"))


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)


DAMAGES = {
    "truncated": (truncate, r"has \d+ bytes of \d+"),
    "emptied": (lambda path: path.write_bytes(b""), r"has 0 bytes of \d+"),
    "flipped": (flip, "was changed"),
    "gone": (os.remove, "is missing"),
}

# their ends differ between Trainers
KINDS = ["model_state.pd", "optimizer.pd", "trainer_state", "rng_state", "ldopt_layerwise"]


def test_every_file_of_a_checkpoint_is_listed(whole):
    folder = whole[0] / "checkpoint-2"
    listed = set(json.loads((folder / FILES).read_text())["files"])
    assert listed == {path.name for path in folder.iterdir()} - {FILES}
    for kind in KINDS:
        assert any(name.startswith(kind) for name in listed)


@pytest.mark.promise("a corrupt checkpoint is skipped with a warning, and refused if named")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_passed_over_and_refused_by_name(copied, damage, kind):
    destroy, words = DAMAGES[damage]
    (name,) = [path.name for path in (copied / "checkpoint-6").glob(f"{kind}*")]
    destroy(copied / "checkpoint-6" / name)
    if (damage, kind) == ("gone", "trainer_state"):
        assert last_checkpoint(copied) == str(copied / "checkpoint-4"), "it may be one of a Trainer that was cut short"
    else:
        with pytest.warns(UserWarning, match=f"checkpoint-6 is damaged and skipped: '{name}' {words}"):
            assert last_checkpoint(copied) == str(copied / "checkpoint-4")
    before = common.weights(common.tiny_model())
    trainer = common.trainer(copied, optim="adamwdl", layerwise_lr_decay=0.8)
    with warnings.catch_warnings(), pytest.raises(ValueError, match=f"damaged: '{name}' {words}.*last valid one. Rec"):
        warnings.simplefilter("error")  # the error says it all
        trainer.train(resume_from_checkpoint=str(copied / "checkpoint-6"))
    assert common.same(before, common.weights(trainer.model)) and trainer.optimizer is None


@pytest.mark.timeout(60)
def test_a_list_of_files_that_is_damaged_is_damage_and_one_that_is_not_there_is_none(copied):
    device = '{"files": {"/dev/zero": [0, 0]}}'  # which is not read
    for text in ("", "{", "[]", '{"files": 3}', '{"files": {"optimizer.pdopt": 3}}', device):
        (copied / "checkpoint-6" / FILES).write_text(text)
        with pytest.warns(UserWarning, match="'/dev/zero' is missing" if text == device else f"{FILES} cannot be read"):
            assert last_checkpoint(copied) == str(copied / "checkpoint-4")
    os.remove(copied / "checkpoint-6" / FILES)
    assert last_checkpoint(copied) == str(copied / "checkpoint-6")
    record.begin_checkpoint(str(copied / "checkpoint-6"), {record.LAYERWISE: {"optimizer": "AdamWDL"}})
    record.finish_checkpoint(str(copied / "checkpoint-6"), all_written=False)  # in the background
    assert not (copied / "checkpoint-6" / FILES).exists() and last_checkpoint(copied) == str(copied / "checkpoint-6")


@pytest.mark.promise(
    "an automatic resume falls back to the last valid checkpoint and ends with the weights of an uninterrupted run"
)
def test_an_automatic_resume_falls_back_and_ends_with_the_same_weights(copied, whole):
    flip(copied / "checkpoint-6/model_state.pdparams")
    truncate(copied / "checkpoint-4/optimizer.pdopt")
    with pytest.warns(UserWarning, match="damaged") as said:
        resumed = run(copied, resume=True)
    damaged = [os.path.basename(str(w.message).split()[0]) for w in said if "damaged" in str(w.message)]
    assert damaged == ["checkpoint-6", "checkpoint-4"]
    assert common.same(common.weights(resumed.model), whole[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert last_checkpoint(copied) == str(copied / "checkpoint-8"), "and what was damaged was written anew"


def test_if_all_are_damaged_there_is_none(copied):
    for step in (2, 4, 6):
        truncate(copied / f"checkpoint-{step}/optimizer.pdopt")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(ValueError, match="No valid checkpoint found"):
        run(copied, resume=True)
    with pytest.raises(ValueError, match="takes the last valid one. Received"):
        run(copied, resume=str(copied / "checkpoint-6"))


@pytest.fixture
def small_disk(tmp_path):
    """A function that mounts a file system of so many bytes; only root may."""
    mounted = []

    def mount(size):
        folder = tmp_path / f"disk-{len(mounted)}"
        folder.mkdir()
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
        if done.returncode:
            pytest.skip("a small file system needs the rights to mount one")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", folder], check=True)


@pytest.mark.promise("a full disk costs at most one checkpoint", seen="disk full at 40 moments, 8 minutes")
@pytest.mark.parametrize("part", [4, 24, *(pytest.param(n, marks=pytest.mark.fault) for n in range(40) if n % 20 != 4)])
def test_a_disk_that_is_full_costs_no_more_than_one_save(small_disk, whole, part):
    """The disk is full when so many 40ths of the third checkpoint are written; there is room in the resume."""
    one, share = sum(path.stat().st_size for path in (whole[0] / "checkpoint-2").rglob("*")), part / 40
    size = int((2 + share) * one) // 4096 * 4096 + 25 * 4096  # files fill whole pages
    folder = small_disk(size)
    with pytest.raises(Exception) as caught:  # Paddle has errors of its own
        run(folder)
    assert "No space left" in str(caught.value) or "Errno 28" in str(caught.value), caught.value
    last = last_checkpoint(folder)
    assert last is not None and 2 <= int(last.rpartition("-")[2]) <= 6
    subprocess.run(["mount", "-o", f"remount,size={size + 8 * one}", folder], check=True)
    assert common.same(common.weights(run(folder, resume=True).model), whole[1])
    assert not list(folder.glob("*/*.partial"))


@pytest.mark.promise("a full disk costs at most one checkpoint")
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_file_that_cannot_be_written_to_its_end(tmp_path, whole, share):
    biggest = max(path.stat().st_size for path in (whole[0] / "checkpoint-2").iterdir())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    run(tmp_path / "run", max_steps=2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(share * biggest), before[1]))
    try:
        with pytest.raises(Exception, match="File too large"):
            run(tmp_path / "run", resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert last_checkpoint(tmp_path / "run") == str(tmp_path / "run/checkpoint-2")
    assert common.same(common.weights(run(tmp_path / "run", resume=True).model), whole[1])


def test_a_disk_without_a_byte_left_is_refused_before_the_first_step(small_disk):
    folder = small_disk(16 * 4096)
    with open(folder / "fill", "wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    trainer = common.trainer(folder, optim="adamwdl")
    with pytest.raises(ValueError, match="cannot be saved in `output_dir`.*No space left.*Received: output_dir="):
        trainer.train()
    assert trainer.optimizer is None


BIND, REMOUNT, READ_ONLY = 4096, 32, 1  # of <sys/mount.h>


@pytest.fixture
def read_only():
    """A function that closes a folder for writing, for root too, and returns a function that opens it again."""
    with contextlib.ExitStack() as opening:

        def close(folder):
            if os.geteuid():
                folder.chmod(0o500)
                opening.callback(folder.chmod, 0o700)
                return opening.close
            libc, path = ctypes.CDLL(None, use_errno=True), os.fsencode(folder)
            if libc.mount(path, path, None, BIND, None):
                pytest.skip(f"root may write anywhere and cannot mount here: {os.strerror(ctypes.get_errno())}")
            opening.callback(libc.umount2, path, 0)
            assert libc.mount(path, path, None, BIND | REMOUNT | READ_ONLY, None) == 0
            return opening.close

        yield close


@pytest.mark.promise("an output folder without write permission is refused before the first step")
def test_a_folder_that_cannot_be_written_into_is_refused_before_the_first_step(tmp_path, read_only):
    (tmp_path / "run").mkdir()
    trainer = common.trainer(tmp_path / "run", optim="adamwdl", save_strategy="no")
    read_only(tmp_path / "run")
    trainer.train()  # saves nothing
    trainer = common.trainer(tmp_path / "run", optim="adamwdl")
    with pytest.raises(ValueError, match="cannot be saved in `output_dir`.*save_strategy='no'. Received: output_dir="):
        trainer.train()
    assert trainer.optimizer is None and not list((tmp_path / "run").iterdir())


def test_a_folder_that_cannot_be_written_into_any_longer(copied, whole, read_only):
    class Closes(common.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 7:
                opens.append(read_only(copied))

    opens = []
    with pytest.raises(OSError, match="Read-only|Permission denied"):
        run(copied, resume=True, callbacks=[Closes()])
    assert last_checkpoint(copied) == str(copied / "checkpoint-6")
    opens[0]()
    assert common.same(common.weights(run(copied, resume=True).model), whole[1])


class Jumps(common.TrainerCallback):
    """Puts the clock of the process, and the times of files that are written, years to and fro."""

    def __init__(self, monkeypatch):
        self.patch, self.real, self.moves = monkeypatch, time.time, [3e8, -6e8, 0.0, -3e8, 6e8]

    def on_step_begin(self, args, state, control, **kwargs):
        move = self.moves[state.global_step % 5]
        self.patch.setattr(time, "time", lambda: self.real() + move)

    def on_save(self, args, state, control, **kwargs):
        folder, then = os.path.join(args.output_dir, f"checkpoint-{state.global_step}"), time.time()
        for path in [folder, *(os.path.join(folder, name) for name in os.listdir(folder))]:
            os.utime(path, (then, then))


@pytest.mark.promise("jumps of the system clock do not change a run")
def test_a_clock_that_jumps_changes_nothing(tmp_path, whole, monkeypatch):
    trainer = run(tmp_path, callbacks=[Jumps(monkeypatch)], save_total_limit=2)
    assert common.same(common.weights(trainer.model), whole[1])
    assert steps(tmp_path) == [6, 8]


@pytest.mark.promise("jumps of the system clock do not change a run")
def test_the_newest_checkpoint_stays_though_its_files_are_the_oldest(copied):
    for step in (2, 4, 6):
        os.utime(copied / f"checkpoint-{step}", (2e9 - step, 2e9 - step))
    (copied / "checkpoint-4-copied-by-hand").mkdir()
    run(copied, resume=True, save_total_limit=2)
    kept = sorted(name for name in os.listdir(copied) if name.startswith("checkpoint-"))
    assert kept == ["checkpoint-4-copied-by-hand", "checkpoint-6", "checkpoint-8"]


@pytest.mark.promise(
    "a run resumed from an earlier checkpoint renames the later ones `superseded-checkpoint-<step>` and deletes none"
)
def test_a_run_that_goes_on_from_an_earlier_checkpoint_or_anew_is_the_one_that_is_resumed(copied, monkeypatch):
    said = []
    logger = types.SimpleNamespace(info=len, warning=said.append)
    monkeypatch.setattr("paddle_ldopt.trainer.resume.logger_of", lambda trainer: logger)
    old = {step: contents(copied / f"checkpoint-{step}") for step in (2, 4, 6)}
    again = {"resume": str(copied / "checkpoint-2"), "learning_rate": 1e-5, "save_total_limit": 3}
    run(copied, **again, max_steps=3)
    assert not said and last_checkpoint(copied) == str(copied / "checkpoint-6"), "nothing was saved"
    run(copied, **again, max_steps=4)
    assert last_checkpoint(copied) == str(copied / "checkpoint-4") and steps(copied) == [2, 4]
    assert contents(copied / "superseded-checkpoint-4") == old[4] != contents(copied / "checkpoint-4")
    assert contents(copied / "superseded-checkpoint-6") == old[6] and contents(copied / "checkpoint-2") == old[2]
    names = [re.findall(r"[a-z]*-?checkpoint-\d", line) for line in said]
    assert names == [[f"checkpoint-{step}", f"superseded-checkpoint-{step}"] for step in (4, 6)]
    run(copied, **again, max_steps=3, save_steps=3)
    names = sorted(path.name for path in copied.glob("superseded-*"))
    assert names == ["superseded-checkpoint-4", "superseded-checkpoint-4-2", "superseded-checkpoint-6"]
    said.clear()
    assert run(copied, resume=True, max_steps=6).state.global_step == 6
    assert not said and steps(copied) == [2, 3, 4, 6], "a run that goes on from its last checkpoint renames nothing"
    old = contents(copied / "checkpoint-6")
    run(copied, learning_rate=1e-5, max_steps=4)  # from the start
    assert steps(copied) == [2, 4] and contents(copied / "superseded-checkpoint-6-2") == old
    assert run(copied, resume=True, learning_rate=1e-5, max_steps=5).state.global_step == 5


@pytest.mark.promise(
    "a run resumed from an earlier checkpoint renames the later ones `superseded-checkpoint-<step>` and deletes none"
)
def test_what_cannot_be_resumed_from_is_not_set_aside(copied):
    truncate(copied / "checkpoint-4/optimizer.pdopt")
    (copied / "checkpoint-6" / record.PARTIAL).touch()
    (copied / "checkpoint-9").touch()
    assert record.set_aside(copied, 2) == [] and steps(copied) == [2, 4, 6, 9]
    os.remove(copied / "checkpoint-9")
    run(copied, resume=str(copied / "checkpoint-2"), max_steps=5, save_steps=3, save_total_limit=1)
    assert steps(copied) == [3], "checkpoints of later steps than a run has come to go first"


def test_a_best_checkpoint_that_was_deleted_stops_no_training(tmp_path):
    class Deletes(common.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            if state.global_step == 2:
                shutil.rmtree(state.best_model_checkpoint)

    settings = {"evaluation_strategy": "steps", "load_best_model_at_end": True, "metric_for_best_model": "eval_loss"}
    settings.update(eval_steps=2, save_total_limit=1, learning_rate=1e-30)
    trainer = run(tmp_path, callbacks=[Deletes()], **settings)
    assert trainer.state.global_step == 9 and steps(tmp_path)[-1] == 8


class Broken(common.Data):
    """Rows of which one cannot be read."""

    def __getitem__(self, i):
        if i == len(self) - 1:
            raise KeyError("the last row")
        return super().__getitem__(i)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("does", ["train", "evaluate", "collate"])
def test_what_a_data_set_raises_is_raised_and_not_waited_for(tmp_path, does):
    def collate(rows):
        raise KeyError("the last row")

    trainer = common.trainer(tmp_path, optim="adamwdl", max_steps=8)
    if does == "collate":
        trainer.data_collator = collate
    else:
        trainer.train_dataset = trainer.eval_dataset = Broken()
    with pytest.raises(KeyError, match="the last row"):
        trainer.evaluate() if does == "evaluate" else trainer.train()
