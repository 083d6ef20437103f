"""docs/reference/callbacks.rst: its example runs in a Trainer, its table has the arguments."""

import inspect
import re
import textwrap

import trainer_common
from project import ROOT

from paddle_ldopt import trainer as ours

TEXT = (ROOT / "docs" / "reference" / "callbacks.rst").read_text(encoding="utf-8")


def test_the_example_runs(tmp_path):
    trainer = trainer_common.trainer(tmp_path, optim="adamwdl", layerwise_lr_decay=0.8)
    block = re.search(r"code-block:: python\n\n(.*?)\n\n(?=\S)", TEXT, re.S)[1]
    exec(textwrap.dedent(block), {"trainer": trainer})
    assert {"schedule.png", "schedule.csv"} <= {path.name for path in tmp_path.iterdir()}


def test_the_table_has_every_argument():
    rows = re.findall(r"^``(\w+)`` +(``.*?|none)  ", TEXT, re.M)
    found = {name: re.findall(r"``(\w+)", arguments) for name, arguments in rows}
    assert set(found) == {name for name in ours.__all__ if "Callback" in name or name == "StopOnSigterm"}
    for name, arguments in found.items():
        assert arguments == [arg for arg in inspect.signature(getattr(ours, name)).parameters if arg != "self"], name
