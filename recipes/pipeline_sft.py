"""Train a small LLaMA in pipeline stages, with dynamic loss scaling: a step that overflows is skipped.

    make pipeline                                                          # two processes on a CPU; under 3 minutes
    make pipeline ARGS="--inject_overflow 5,9"                             # an inf in a gradient in steps 5 and 9
    . .venv/bin/activate                                                   # for the commands below
    python recipes/pipeline_sft.py --data rows.csv --optim came --steps 400
    python recipes/pipeline_sft.py --output_dir runs/sft                   # keeps checkpoints; --resume continues
    python -m paddle.distributed.launch --devices 0,1,2,3 recipes/pipeline_sft.py --stages 2 --float16   # 2 replicas

The model learns to write, byte by byte, a text of a given class: by default the docstring of a function, class or
module of Python's standard library. The recipe starts its own processes unless `paddle.distributed.launch` has started
them. The loss is the mean over all tokens.
"""

import dataclasses
import glob
import os
import signal
import sys
import tempfile
import traceback
from typing import Optional

import common.start  # noqa: F401 - before Paddle
import numpy as np
import paddle
import paddle.distributed as dist
from common import error
from common.arguments import option, parse_line
from common.language_data import IGNORED, VOCABULARY, Messages, by_bytes, load_pairs, padded, unigram
from common.rows import set_length
from common.start import entry_point
from common.text_data import load_splits
from paddle.distributed import fleet
from paddle.distributed.launch.main import launch
from rich.console import Console

import paddle_ldopt as ldopt

SHAPE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}


@dataclasses.dataclass
class Options:
    """Data, optimizer and processes."""

    data: str = option("docstrings", "docstrings, a file or folder, as in text_classification.py")
    source_field: Optional[str] = option(None, "column of the prompt; files are then as in language_model_sft.py")
    target_field: Optional[str] = option(None, "column of the answer; files are then as in language_model_sft.py")
    encoding: Optional[str] = option(None, "encoding of the files, such as cp1252 or big5; by default detected")
    optim: str = option("adamwdl", f"optimizer: {', '.join(ldopt.list_optimizers())}")
    learning_rate: float = option(2e-3, "peak learning rate of the head; the schedule is a cosine")
    layerwise_decay: float = option(0.9, "rate of a layer / rate of the layer above; 1 is uniform")
    max_grad_norm: float = option(1.0, "global norm to which gradients are clipped")
    loss_scale: float = option(2.0**12, "initial loss scale; it doubles after 50 steps without an overflow")
    steps: int = option(200, "number of steps, including steps that overflow", least=1)
    stages: int = option(2, "number of pipeline stages; additional processes hold data-parallel replicas", least=2)
    micro_batch_num: int = option(4, "micro-batches per step", least=1)
    micro_batch_size: int = option(8, "rows per micro-batch", least=1)
    length: Optional[int] = option(None, "maximum bytes per row; by default 99 % fit, or 64 for docstrings", least=8)
    seed: int = option(0, "seed of the weights and the order of the rows")
    inject_overflow: str = option("", "steps with an inf gradient, such as 5,9")
    float16: bool = option(False, "train in float16 with autocast; on a GPU only")
    output_dir: Optional[str] = option(None, "folder of the checkpoints; by default none are saved")
    save_steps: int = option(100, "steps between two checkpoints", least=1)
    resume: bool = option(False, "resume from the last complete checkpoint in output_dir")

    def __post_init__(self):
        if self.data == "docstrings":  # two cores learn them in minutes
            self.length = self.length or 64
        self.overflows = {int(step) for step in self.inject_overflow.split(",") if step}
        if self.float16 and paddle.get_device() == "cpu":
            raise error("`--float16` needs a GPU.", float16=True, device="cpu")


def launched(args):
    """Return in a launched process; otherwise start the processes and exit with their code, or on a signal."""
    if "PADDLE_TRAINER_ID" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends it also while it waits for another process
        return
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
    threads = max((os.cpu_count() or 1) // args.stages, 1)  # more threads than cores are slow
    quiet = {"GLOG_minloglevel": "1", "PYTHONWARNINGS": "ignore:No ccache found"}
    os.environ.update({"OMP_NUM_THREADS": str(threads), **quiet, **os.environ})
    with tempfile.TemporaryDirectory() as logs:
        own = ["--nproc_per_node", str(args.stages), "--log_level", "WARNING", "--log_dir", logs]
        sys.argv = ["launch", *own, *sys.argv]
        try:
            launch()  # on a signal, it ends the processes and exits with the number of the signal
        except SystemExit as ended:
            if traceback.extract_tb(ended.__traceback__)[-1].name != "signal_handler":  # a process's own exit code
                raise
            saved = args.output_dir and glob.glob(os.path.join(glob.escape(args.output_dir), "checkpoint-*", "*"))
            kept = f"; `--resume` continues from the last checkpoint in {args.output_dir}" if saved else ""
            print(f"ended by a signal{kept}", file=sys.stderr)
            sys.exit(128 + ended.code)


def start(args):
    """Start fleet with `stages` processes in each pipeline, and as many pipelines as the processes allow."""
    replicas, rest = divmod(dist.get_world_size(), args.stages)
    if rest:
        raise error(f"`--stages` must divide the {dist.get_world_size()} processes.", stages=args.stages)
    strategy = fleet.DistributedStrategy()
    strategy.hybrid_configs = {"pp_degree": args.stages, "dp_degree": replicas}
    strategy.pipeline_configs = {"accumulate_steps": args.micro_batch_num, "micro_batch_size": args.micro_batch_size}
    if paddle.get_device() == "cpu":
        strategy.hybrid_configs["pp_configs"].use_batch_p2p_comm = False  # gloo has no batched messages
        dist.ParallelEnv.device_id = 0  # a PipelineLayer asks for the number of the device, which a CPU lacks
    fleet.init(is_collective=True, strategy=strategy, log_level="WARNING")
    paddle.seed(args.seed + dist.get_rank())
    return fleet.get_hybrid_communicate_group()


def conversations(rows, names):
    texts = [text if isinstance(text, str) else " / ".join(text) for text, _ in rows]
    return [(("user", f"{names[label]}: "), ("assistant", text)) for text, (_, label) in zip(texts, rows)]


def llama(length):
    """Return this process's stage of PaddleNLP's model, with a loss per token, and the layer map of all stages."""
    from paddlenlp.transformers import LlamaConfig, LlamaForCausalLMPipe  # slow; not needed to start processes

    from paddle_ldopt.trainer.stages import map_layers

    class Llama(LlamaForCausalLMPipe):
        def get_loss_fn(self, config):
            return self.loss_of

        def loss_of(self, logits, labels):
            counts = (labels != IGNORED).astype("float32")
            losses = paddle.nn.functional.cross_entropy(logits, labels.clip(min=0), reduction="none")
            total, count = (losses.flatten() * counts.flatten()).sum(), counts.sum()
            return (total, count) if self.training else total / count

    config = {"vocab_size": VOCABULARY, "max_position_embeddings": length, "use_flash_attention": False}
    network = Llama(LlamaConfig(**config, **SHAPE, tie_word_embeddings=False))
    return network, map_layers(network)


def part_of(folder, done, rank):
    return os.path.join(folder, f"checkpoint-{done}", f"rank{rank:04}.pdparams")


def last_step(args):
    """Return the step of the last complete checkpoint, 0 for a new run."""
    ranks = range(dist.get_world_size())
    paths = glob.glob(os.path.join(glob.escape(args.output_dir), "checkpoint-*")) if args.output_dir else []
    steps = [int(path.rpartition("-")[2]) for path in paths]
    steps = [step for step in steps if all(os.path.exists(part_of(args.output_dir, step, rank)) for rank in ranks)]
    if bool(steps) != args.resume:
        problem = "`--output_dir` must have a checkpoint of as many processes with `--resume`, and none without."
        raise error(problem, output_dir=args.output_dir, resume=args.resume, steps=steps, processes=len(ranks))
    return max(steps, default=0)


def run(argv):
    args = parse_line(argv, Options)
    launched(args)
    hcg = start(args)
    done = last_step(args)
    console = Console(quiet=dist.get_rank() != 0, soft_wrap=True, highlight=False)
    pairs = args.source_field or args.target_field
    splits = load_pairs(args, {}, True) if pairs else load_splits(args.data, encoding=args.encoding, kind="classes")
    asked = splits.each(lambda rows: rows if pairs else conversations(rows, splits.labels))
    set_length(args, asked["train"], lambda row: sum(len(ids) for ids, _ in by_bytes(row)) - 1, None, "length")
    train, test = (Messages(asked[split], args.length) for split in ("train", "test"))
    rows = args.micro_batch_num * args.micro_batch_size
    everyone = rows * hcg.get_data_parallel_world_size()
    if len(test) < rows or len(train) < everyone:
        problem = f"A step needs {everyone} training rows and {rows} test rows: lower `--micro_batch_size`."
        raise error(problem, data=args.data, train=len(train), test=len(test))
    console.print(splits.description + splits.warning, markup=False)
    console.print(f"length={args.length}: train: {train.account('train')}; test: {test.account('test')}.")
    inputs, labels = padded(train, args.length)
    tested = padded(test[: len(test) // rows * rows], args.length)
    network, layers = llama(args.length)
    schedule = ldopt.get_cosine_schedule_with_warmup(args.learning_rate, max(args.steps // 10, 1), args.steps)
    optimizer = ldopt.create(args.optim, network, args.layerwise_decay, learning_rate=schedule, layers=layers)
    console.print(layers.table(optimizer=optimizer))
    model, wrapped = fleet.distributed_model(network), fleet.distributed_optimizer(optimizer)
    scaler = ldopt.DynamicLossScaler(args.loss_scale, scale_factor=2, scale_window=50)
    how = {"max_grad_norm": args.max_grad_norm, "scale_sense": scaler, "micro_batch_num": args.micro_batch_num}
    step = ldopt.PipelineWithLossScale(model, wrapped, calculate_per_token_loss=True, **how)
    parts = {"network": network, "optimizer": optimizer, "step": step}
    if done:
        console.print(f"resumed after step {done} of {args.steps}")
        for name, state in paddle.load(part_of(args.output_dir, done, dist.get_rank())).items():
            parts[name].set_state_dict(state)
    now = [0]
    if dist.get_rank() == dist.get_world_size() - 1:  # in one process: all others must detect it
        broken = lambda gradient: gradient * np.inf if now[0] in args.overflows else gradient  # noqa: E731
        network.parameters()[0].register_hook(broken)
    console.print(" step     loss overflow loss_scale learning_rate global_norm")
    mine = slice(hcg.get_data_parallel_rank() * rows, (hcg.get_data_parallel_rank() + 1) * rows)
    for now[0] in range(done + 1, args.steps + 1):
        drawn = np.random.default_rng([args.seed, now[0]]).choice(len(inputs), everyone, replace=False)[mine]
        with paddle.amp.auto_cast(args.float16, dtype="float16"):
            output = step(paddle.to_tensor(inputs[drawn]), paddle.to_tensor(labels[drawn]))
        loss, overflow, scale, rate, norm = (value.item() for value in output)
        console.print(f"{now[0]:5} {loss:8.4f} {overflow!s:>8} {scale:10g} {rate:13.3e} {norm:11.4f}")
        if args.output_dir and (now[0] % args.save_steps == 0 or now[0] == args.steps):
            path = part_of(args.output_dir, now[0], dist.get_rank())
            paddle.save({name: part.state_dict() for name, part in parts.items()}, f"{path}.part")
            os.replace(f"{path}.part", path)  # whole or not at all
    batches = [[paddle.to_tensor(part[i : i + rows]) for part in tested] for i in range(0, len(tested[0]), rows)]
    loss = np.mean([model.eval_batch(batch, compute_loss=True).item() for batch in batches])
    baseline = unigram(labels[labels != IGNORED], tested[1][tested[1] != IGNORED], VOCABULARY)
    covered = f"scores cover {len(tested[0])} of {len(test)} texts, in whole batches"
    console.print(f"loss on the test texts: {loss:.3f}; unigram baseline: {baseline:.3f}; {covered}")
    dist.barrier()  # a process that ends early closes the connections of the others
    dist.destroy_process_group()


main = entry_point(run)

if __name__ == "__main__":
    main()
