"""Run a recipe at several learning rates, layer-wise decays and seeds; compare the scores in a table and a report.

    python recipes/sweep.py
    python recipes/sweep.py --recipe text_classification --arguments "--data reviews.csv" --output_dir runs/reviews
    python recipes/sweep.py --output_dir runs/sweep-20261121-140000 --seeds 5           # resumes, with two more seeds

The best learning rate of each decay is the rate with the best validation score. The sweep keeps no models.
"""

import dataclasses
import shlex
import time
from typing import Optional

import common.start  # noqa: F401 - before Paddle
from common import command
from common.arguments import option, parse_line
from common.comparison import Study
from common.start import entry_point, take


@dataclasses.dataclass
class Options:
    """The recipe and its runs."""

    recipe: str = option("image_classification", "name of the recipe, without .py")
    learning_rates: list[float] = option([3e-4, 1e-3, 3e-3], "learning rates")
    decays: list[float] = option([1.0, 0.8, 0.65], "layer-wise decays; 1 is uniform training")
    seeds: int = option(3, "number of seeds", least=1)
    first_seed: int = option(42, "the first seed")
    arguments: str = option("", 'further arguments of the recipe: "--data reviews.csv --config FILE"')
    output_dir: Optional[str] = option(None, "folder of the sweep; runs/sweep-<time> by default")


def run(argv):
    options = parse_line(argv, Options)
    options.output_dir = options.output_dir or time.strftime("runs/sweep-%Y%m%d-%H%M%S")
    again = command("sweep", *take(argv, "output_dir")[1], "--output_dir", options.output_dir)
    print(f"after an interruption: {again}", flush=True)
    seeds = list(range(options.first_seed, options.first_seed + options.seeds))
    arguments, rates = shlex.split(options.arguments), options.learning_rates
    Study(options.recipe, arguments, rates, options.decays, seeds, options.output_dir).run()


main = entry_point(run)

if __name__ == "__main__":
    main()
