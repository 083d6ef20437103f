"""State of each optimizer on the parameters of BERT-base, counted after a step.

make bench
"""

import argparse

from shapes import bert_base_shapes, parameters

import paddle_ldopt as ldopt

# beside the defaults; what the arithmetic says in bytes a parameter is in benchmarks/README.md
ROWS = {
    "adamwdl": {},
    "lamb": {"learning_rate": 1e-3},
    "came": {"learning_rate": 1e-3},
    "came, compression": {"learning_rate": 1e-3, "compression": True},
    "adafactor": {},
    "adafactor, beta1": {"beta1": 0.9},
    "adamweightdecay": {},
    "adamweightdecay, amsgrad": {"amsgrad": True},
}


def state_bytes(name, arguments, shapes):
    """Return the bytes of all state tensors after one step, and the number of elements of the parameters."""
    params, name_dict = parameters(shapes)
    optimizer = ldopt.optimizer_class(name.split(",")[0])(parameters=params, name_dict=name_dict, **arguments)
    optimizer.step()
    state = [value for value in optimizer.state_dict().values() if hasattr(value, "element_size")]
    return sum(value.size * value.element_size() for value in state), sum(param.size for param in params)


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print("| optimizer | state, MiB | bytes a parameter |\n| --- | --: | --: |")
    for name, arguments in ROWS.items():
        size, elements = state_bytes(name, arguments, bert_base_shapes())
        print(f"| `{name}` | {size / 2**20:.1f} | {size / elements:.4f} |", flush=True)


if __name__ == "__main__":
    main()
