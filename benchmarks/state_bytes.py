"""Count the bytes of each optimizer's state for the parameters of BERT-base, after a step.

    python benchmarks/state_bytes.py

`make bench` writes the same table into benchmarks/README.md.
"""

import argparse

from shapes import bert_base_shapes, count, parameters

import paddle_ldopt as ldopt

# beside the defaults: arguments, and what the state is made of
ROWS = {
    "adamwdl": ({}, "two moments"),
    "lamb": ({"learning_rate": 1e-3}, "two moments"),
    "came": ({"learning_rate": 1e-3}, "one moment, two row and two column averages of each matrix"),
    "came, compression": ({"learning_rate": 1e-3, "compression": True}, "the moment as float16"),
    "adafactor": ({}, "one row and one column average of each matrix"),
    "adafactor, beta1": ({"beta1": 0.9}, "one moment, one row and one column average of each matrix"),
    "adamweightdecay": ({}, "two moments"),
    "adamweightdecay, amsgrad": ({"amsgrad": True}, "three moments"),
}


def bytes_of(optimizer):
    """Return the bytes of all state tensors of a Paddle optimizer."""
    state = [value for value in optimizer.state_dict().values() if hasattr(value, "element_size")]
    return sum(value.size * value.element_size() for value in state)


def state_bytes(name, arguments, shapes):
    """Return the bytes of all state tensors after one step, and the number of elements of the parameters."""
    params, name_dict = parameters(shapes)
    optimizer = ldopt.optimizer_class(name.split(",")[0])(parameters=params, name_dict=name_dict, **arguments)
    optimizer.step()
    return bytes_of(optimizer), count(shapes)


def rows(shapes):
    """Yield one row of the table after the other."""
    for name, (arguments, what) in ROWS.items():
        size, elements = state_bytes(name, arguments, shapes)
        yield {"optimizer": name, "bytes": size, "elements": elements, "what": what}


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print("| optimizer | state, MiB | bytes per parameter |\n| --- | --: | --: |")
    for row in rows(bert_base_shapes()):
        size = row["bytes"]
        print(f"| `{row['optimizer']}` | {size / 2**20:.1f} | {size / row['elements']:.4f} |", flush=True)


if __name__ == "__main__":
    main()
