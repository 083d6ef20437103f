"""`python -m paddle_ldopt schedule`, as a user calls it."""

import pytest

from paddle_ldopt.tools.cli import main

COSINE = ["schedule", "--type", "cosine", "--steps", "1000", "--warmup", "100", "--lr", "5e-5"]


def marks(text):
    """Return the columns of the plot that have a star, by row from the top."""
    rows = [line.split("|", 1)[1] for line in text.splitlines() if "|" in line]
    return [[i for i, mark in enumerate(row) if mark == "*"] for row in rows]


def test_it_plots_in_the_terminal(capsys):
    assert main(COSINE) == 0
    out = capsys.readouterr().out
    assert "5e-05 |" in out and "0..999" in out
    rows = marks(out)
    assert rows[-1][0] == 0 and rows[-1][-1] == 71, "it starts and ends at 0"
    assert all(6 <= column <= 20 for column in rows[0]), "the peak is at step 100 of 1000"
    assert {column for row in rows for column in row} == set(range(72))


def test_layers_are_drawn_below_the_head(capsys):
    assert main([*COSINE, "--decay", "0.5", "--layers", "3"]) == 0
    out = capsys.readouterr().out
    assert "* head   . embeddings and all between" in out and ".." in out


def test_kwargs_reach_the_schedule(capsys):
    restarts = ["schedule", "--type", "cosine_with_restarts", "--steps", "300", "--lr", "1"]
    assert main([*restarts, "--kwargs", '{"num_cycles": 3}']) == 0
    assert len([c for c in marks(capsys.readouterr().out)[0] if c in (0, 24, 48)]) == 3


def test_it_draws_a_file(tmp_path, capsys):
    picture = tmp_path / "schedule.png"
    assert main([*COSINE, "--plot", str(picture), "--decay", "0.8", "--layers", "12"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    shown = capsys.readouterr()
    assert shown.out == "" and str(picture) in shown.err


@pytest.mark.parametrize(
    "options, says",
    [
        ({"--type": "cosin"}, "Received: --type='cosin'"),
        ({"--type": "reduce_lr_on_plateau"}, "Received: --type='reduce_lr_on_plateau'"),
        ({"--steps": "0"}, "Received: --steps=0"),
        ({"--warmup": "-1"}, "Received: --warmup=-1"),
        ({"--lr": "-1"}, "Received: --lr=-1.0"),
        ({"--kwargs": "{min_lr}"}, "Received: --kwargs='{min_lr}'"),
        ({"--kwargs": '{"no_such": 1}'}, "no_such"),
        ({"--decay": "0.8"}, "Received: --decay=0.8, --layers=None"),
        ({"--layers": "12"}, "Received: --layers=12"),
        ({"--layers": "0", "--decay": "0.8"}, "Received: --layers=0"),
        ({"--layers": "3", "--decay": "2"}, "Received: --decay=2.0"),
        ({"--plot": "out.txt"}, "Received: --plot='out.txt'"),
    ],
)
def test_errors(options, says, capsys):
    wanted = {**dict(zip(COSINE[1::2], COSINE[2::2])), **options}
    assert main(["schedule", *(word for pair in wanted.items() for word in pair)]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ") and says in shown.err and not shown.out
