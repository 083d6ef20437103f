"""Count the bytes of each optimizer's state for the parameters of BERT-base, after a step.

    python benchmarks/state_bytes.py
    python benchmarks/state_bytes.py --layers bert     # or llama: time and memory of measuring the layers

`make bench` writes the same table into benchmarks/README.md.
"""

import argparse
import pathlib
import statistics
import time

import paddle
from machine import memory, trim
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


def network(name):
    """Return BERT-base, or a LLaMA of a billion parameters."""
    from paddlenlp import transformers

    if name == "bert":
        return transformers.BertForSequenceClassification(transformers.BertConfig())
    sizes = {"hidden_size": 2048, "num_hidden_layers": 22, "intermediate_size": 5632, "num_attention_heads": 32}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=4, vocab_size=32000, **sizes))


def cost(run):
    """Return the seconds of a run, and by how many bytes the resident memory peaks above what it was."""
    trim()
    before, began = memory("VmRSS"), time.perf_counter()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins again at what is resident
    run()
    return time.perf_counter() - began, memory("VmHWM") - before


def measure_layers(name, rounds=3):
    """Print what measuring costs beside a forward and backward pass, in turns, on one row of 128 tokens."""
    model, tokens = network(name), paddle.randint(1, 1000, [1, 128])

    def train():
        out = model(tokens)
        (out[0] if isinstance(out, tuple) else out).sum().backward()
        model.clear_gradients(set_to_zero=False)

    turns = [[cost(lambda: ldopt.LayerMap.from_model(model, tokens)), cost(train)] for _ in range(rounds + 1)][1:]
    print(f"{name}: {sum(param.size for param in model.parameters()):,} parameters")
    for what, unit, column in (("time", "s", 0), ("memory", "GiB", 1)):
        ours, step = (statistics.median(turn[i][column] / (1, 2**30)[column] for turn in turns) for i in (0, 1))
        print(f"{what}: measuring {ours:.3f} {unit}, forward and backward {step:.3f} {unit}, ratio {ours / step:.2f}")


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", choices=("bert", "llama"))
    if layers := parser.parse_args().layers:
        return measure_layers(layers)
    print("| optimizer | state, MiB | bytes per parameter |\n| --- | --: | --: |")
    for row in rows(bert_base_shapes()):
        size = row["bytes"]
        print(f"| `{row['optimizer']}` | {size / 2**20:.1f} | {size / row['elements']:.4f} |", flush=True)


if __name__ == "__main__":
    main()
