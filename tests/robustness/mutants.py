"""Change the package's code in one place at a time and see whether a test notices: ``make mutants``.

    python tests/robustness/mutants.py --sample 40 --seed 0 layers/map.py layers/decay.py

Paddle takes seconds to import, so everything is imported and collected once; each mutant is put into the functions,
classes and constants of a forked copy of this process, which runs the tests that reach the changed line, up to the
first failure, and after them those that start processes (APART), which import the mutant. A mutant is *killed* by a
failure, a crash or tests that take much longer. The operators are mutmut's: comparisons, arithmetic, and/or,
not, numbers, strings, True/False, keyword arguments left out, None assigned, and `raise` left out. Messages, docstrings
and annotations stay as they are.
"""

import argparse
import ast
import copy
import enum
import importlib
import os
import pathlib
import pickle
import random
import resource
import signal
import sys
import tempfile
import time
import types

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a pool of threads does not outlive a fork

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE, TESTS = ROOT / "paddle_ldopt", ROOT / "tests"
MOST_MEMORY = 16 << 30  # addresses of a mutant: an endless list must not take the machine's memory
# what is mutated by default: all modules of these
ROOMS = (
    "_checks.py",
    "layers",
    "schedules",
    "optimizers",
    "_safetensors.py",
    "checkpoint.py",
    "parallel/checkpoint.py",
    "trainer/arguments.py",
    "trainer/record.py",
)
RULES = [f"optimizers/test_{name}.py" for name in ("adafactor", "adam_weight_decay", "came", "golden", "lamb")]
STEPS = [f"optimizers/test_{name}.py" for name in ("batches", "fused", "fused_changes", "step_schedules")]
RATIOS = [f"optimizers/test_{name}.py" for name in ("adam*", "apply", "shards")]
# tests of a file beside those that `tests_of` finds by its name: patterns below tests/
MORE = {
    "_checks.py": ["test_checks.py", "schedules/test_*.py", "optimizers/test_lamb.py"],
    "layers/decay.py": ["layers/test_ratios.py", "optimizers/test_adamwdl.py"],
    "optimizers/base.py": [*STEPS, *RATIOS],
    "optimizers/batches.py": [*STEPS, "optimizers/test_shards.py"],
    "optimizers/fused.py": [*STEPS, "optimizers/test_lamb.py"],
    "optimizers/moments.py": ["robustness/test_bad_numbers.py", *RULES],
    "optimizers/rule_optimizer.py": [*STEPS, *RULES, "optimizers/test_shards.py"],
    "optimizers/sharded.py": ["optimizers/test_shards.py", "saving/test_sharded_state.py", *RULES],
    "optimizers/step.py": [*STEPS, *RATIOS],
    "optimizers/adamwdl.py": ["saving/test_saving.py"],
    "optimizers/apply.py": ["layers/test_decay.py"],
    **{
        f"optimizers/{name}.py": ["optimizers/test_fused.py"]
        for name in ("adafactor", "adam_weight_decay", "came", "lamb")
    },
    "_safetensors.py": ["saving/test_*.py"],
    "checkpoint.py": ["saving/test_*.py"],
    "parallel/checkpoint.py": [],  # all in APART
    "schedules/factory.py": ["schedules/test_*.py"],
    "trainer/arguments.py": ["trainer/test_*.py", "test_config.py"],
}
# tests that start processes, and the files of which more runs there than here: they are run if all others have passed
APART = {
    "test_distributed_optimizers.py": [f"optimizers/{name}.py" for name in ("base", "batches", "sharded", "step")],
    "test_parallel_checkpoints.py": ["parallel/checkpoint.py"],
}
_ON_IMPORT = " on import"
# what such a process does first, where this is `sitecustomize`: it imports the mutant in the module's place
IN_PROCESSES = """
import importlib.abc, importlib.util, sys
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            return importlib.util.spec_from_file_location(name, {path!r})
sys.meta_path.insert(0, Finder())
"""
SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div,
    ast.Mod: ast.Div, ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


def files():
    """Return the paths of all modules of ROOMS, below the package."""
    found = (path for room in ROOMS for path in [PACKAGE / room, *sorted((PACKAGE / room).rglob("*.py"))])
    return [path.relative_to(PACKAGE).as_posix() for path in found if path.suffix and path.stem != "__init__"]


def tests_of(file):
    """Return the paths of the tests of a module: its namesakes in the folder of its room, and its list in MORE.

    A module with neither has all tests of the room. The namesake of ``optimizers/came.py`` is test_came.py. What every
    optimizer must do is in test_contracts.py, test_options.py and test_state.py.
    """
    room, *inner = pathlib.PurePath(file).parts
    folder = TESTS / room if inner else TESTS
    names = [part.removesuffix(".py").strip("_") for part in (inner or [room])]
    found = [path for name in names for path in folder.glob(f"test_{name}*.py")] if inner else []
    shared = [f"optimizers/test_{name}.py" for name in ("contracts", "options", "state")]
    patterns = [*MORE.get(file, []), *(shared if room in ("optimizers", "_checks.py") else [])]
    more = [path for pattern in patterns for path in TESTS.glob(pattern)]
    more += [path for path in TESTS.glob("distributed/test_*.py") if file in APART.get(path.name, [])]
    if inner and not found and file not in MORE:
        found = folder.glob("test_*.py")
    return sorted({*found, *more})


def variants(node):
    """Yield (what is changed, how) for one node; `how` changes the node, or returns the one that replaces it."""
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in SWAPS:
                yield "comparison", lambda n, i=i: n.ops.__setitem__(i, SWAPS[type(n.ops[i])]())
    elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in SWAPS:
        yield "operator", lambda n: setattr(n, "op", SWAPS[type(n.op)]())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield "operator left out", lambda n: n.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", lambda n: ast.Constant(not n.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield "constant", lambda n: ast.Constant(n.value + 1)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield "constant", lambda n: ast.Constant(f"XX{n.value}XX")
    elif isinstance(node, ast.Assign) and not (isinstance(node.value, ast.Constant) and node.value.value is None):
        yield "None assigned", lambda n: setattr(n, "value", ast.Constant(None))
    elif isinstance(node, ast.Call):
        for i in range(len(node.keywords)):
            yield "keyword left out", lambda n, i=i: n.keywords.pop(i) and None
    elif isinstance(node, ast.Raise):
        yield "raise left out", lambda n: ast.Pass()
    elif isinstance(node, (ast.Break, ast.Continue)):
        yield "jump", lambda n: ast.Continue() if isinstance(n, ast.Break) else ast.Break()


def sites(node, path=()):
    """Yield (path to a node, its variants) for all nodes that may be changed."""
    yield from ((path, number) for number, _ in enumerate(variants(node)))
    if isinstance(node, (ast.Raise, ast.JoinedStr)) or (isinstance(node, ast.Call) and _is_warning(node)):
        return  # messages
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST) and not _is_text(child):
                yield from sites(child, (*path, (field, i if isinstance(value, list) else None)))


def _is_text(node):
    """Say whether a node is a docstring, the list of exported names, or a text of several words: a message or a doc."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and " " in node.value
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id == "__all__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_warning(node):
    return ast.unparse(node.func) == "warnings.warn"


def _at(tree, path):
    for field, i in path:
        tree = getattr(tree, field) if i is None else getattr(tree, field)[i]
    return tree


class Mutant:
    """One change of one file.

    Attributes:
        line (int): where it is.
        before (str), after (str): the first line of the statement around it, or the changed part of a long one.
    """

    def __init__(self, tree, site):
        path, number = site
        self.tree = copy.deepcopy(tree)
        node = _at(self.tree, path)
        self.line, self.end = node.lineno, node.end_lineno
        depth = max(i for i in range(len(path) + 1) if isinstance(_at(self.tree, path[:i]), (ast.stmt, ast.Module)))
        self.before = self._text(depth, path)
        self.kind, change = list(variants(node))[number]
        new = change(node)
        if new is not None:
            field, i = path[-1]
            parent = _at(self.tree, path[:-1])
            if i is None:
                setattr(parent, field, new)
            else:
                getattr(parent, field)[i] = new
            ast.copy_location(new, node)
        self.after = self._text(depth, path)
        ast.fix_missing_locations(self.tree)

    def _text(self, depth, path):
        text = ast.unparse(_at(self.tree, path[:depth])).split("\n")[0]
        return text if len(text) < 160 else ast.unparse(_at(self.tree, path))


def transplant(old, new, module):
    """Give the objects of a namespace, wherever they are referred to, the code and values of their new versions."""
    for key in [k for k in old if k in new and not (k.startswith("__") and k.endswith("__") and k != "__init__")]:
        before, after = old[key], new[key]
        if before is after or isinstance(before, types.ModuleType):
            continue
        if isinstance(before, type) and before.__module__ == module:
            for member, value in list(vars(before).items()):
                _transplant_member(before, member, value, vars(after).get(member), module)
        elif _function(before) and _function(after):
            _give(before, after)
        elif isinstance(before, dict) and any(map(_function, before.values())):
            for k in [k for k in before if k not in after]:
                del before[k]
            for k, value in after.items():
                if k in before and _function(value):
                    _give(before[k], value)
                else:
                    before[k] = value
        elif not callable(before):
            for other in list(sys.modules.values()):
                if getattr(other, "__dict__", {}).get(key) is before:
                    setattr(other, key, after)


def _transplant_member(cls, name, before, after, module):
    if isinstance(before, property) and isinstance(after, property):
        if _function(before.fget):  # not `property(str)`
            _give(before.fget, after.fget)
    elif isinstance(before, (classmethod, staticmethod)) and after is not None:
        _give(before.__func__, after.__func__)
    elif _function(before) and _function(after):
        _give(before, after)
    elif isinstance(cls, enum.EnumMeta):  # its members cannot be set anew
        return
    elif isinstance(before, (int, float, str, tuple, dict, list, frozenset)) and not name.startswith("__"):
        setattr(cls, name, after)


def _function(value):
    return isinstance(getattr(value, "__wrapped__", value), types.FunctionType)


def _give(before, after):
    before, after = getattr(before, "__wrapped__", before), getattr(after, "__wrapped__", after)
    if before.__code__.co_filename == after.__code__.co_filename:
        before.__code__, before.__defaults__, before.__kwdefaults__ = (
            after.__code__,
            after.__defaults__,
            after.__kwdefaults__,
        )


class Runner:
    """A pytest plugin that runs the collected tests once for each mutant."""

    def __init__(self, files, sample, seed, budget):
        self.files, self.sample, self.seed, self.budget = files, sample, seed, budget
        self.results = []  # (file, line, kind, before, after, verdict)
        self.totals = {}
        self.failed = False

    def pytest_runtestloop(self, session):
        """Take the place of pytest's own loop."""
        reached = _in_child(lambda: self._trace(session), 3600)
        if not isinstance(reached, dict):
            raise SystemExit(f"the tests do not pass as they are: {reached}")
        for file in self.files:
            self._mutate(session, file, reached)
            print(self.summary(file), file=sys.__stdout__, flush=True)
        return True

    def pytest_runtest_logreport(self, report):
        self.failed = self.failed or report.failed

    def summary(self, file):
        """Say how many of a file's mutants were killed."""
        verdicts = [result[-1].startswith("killed") for result in self.results if result[0] == file]
        return f"{file}: {sum(verdicts)} of {len(verdicts)} killed ({self.totals[file]} possible)"

    def _run(self, item, following=None):
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        return not self.failed

    def _trace(self, session):
        """Return test number -> (seconds, {(file, line)}) of the tests that pass."""
        names = {str(PACKAGE / file): file for file in self.files}
        reached = {}
        for number, item in enumerate(session.items):
            if item.path.name in APART:
                continue
            lines, left = set(), [100_000]  # then it is in a loop, whose lines are known

            def local(frame, event, arg, lines=lines, left=left):
                lines.add((names[frame.f_code.co_filename], frame.f_lineno))
                left[0] -= 1
                if left[0] < 0:
                    sys.settrace(None)
                return local if left[0] >= 0 else None

            begun = time.monotonic()
            sys.settrace(lambda f, e, a, local=local: local(f, e, a) if f.f_code.co_filename in names else None)
            passed = self._run(item)
            sys.settrace(None)
            if passed:
                reached[number] = time.monotonic() - begun, lines
            else:
                print("left out, for it fails without a change:", item.nodeid, file=sys.__stdout__, flush=True)
        return reached

    def _mutate(self, session, file, reached):
        source = (PACKAGE / file).read_text(encoding="utf-8")
        tree = ast.parse(source)
        everything = list(sites(tree))
        chosen = sorted(random.Random(self.seed).sample(range(len(everything)), min(self.sample, len(everything))))
        self.totals[file] = len(everything)
        module = importlib.import_module("paddle_ldopt." + file[:-3].replace("/", "."))
        apart = [item for item in session.items if file in APART.get(item.path.name, [])]
        items = {item.nodeid: item for item in session.items}
        reached = dict(reached)
        sound = set()  # tests that pass, and errors that do not occur, with the unchanged file, put in like a mutant
        for number in chosen:
            mutant = Mutant(tree, everything[number])
            while True:
                verdict = self._judge(session, module, mutant.tree, self._tests(session, file, mutant, reached), apart)
                killer = verdict[len("killed by ") :]
                if killer in sound or not (killer in items or killer.endswith(_ON_IMPORT)):
                    break
                again = [items[killer]] if killer in items else []
                same = _in_child(lambda again=again: self._verdict(session, module, tree, [], again), 3600)
                if same == "survived":
                    sound.add(killer)
                    break
                if killer not in items or items[killer] in apart:
                    raise SystemExit(f"{file}: put in unchanged it is {same}")
                print("left out, for it fails where the unchanged module is put in:", killer, file=sys.__stdout__)
                del reached[session.items.index(items[killer])]
            self.results.append((file, mutant.line, mutant.kind, mutant.before, mutant.after, verdict))
            if not verdict.startswith("killed"):
                print(f"{file}:{mutant.line} {verdict}: {mutant.before}  ->  {mutant.after}", file=sys.__stdout__)
                sys.__stdout__.flush()

    def _tests(self, session, file, mutant, reached):
        """Return [(seconds, test number)] of the tests that reach a mutant, the fastest first."""
        within = {(file, line) for line in range(mutant.line, mutant.end + 1)}
        tests = sorted((s, i) for i, (s, lines) in reached.items() if lines & within)
        if not tests:  # a constant, which only importing reaches: a test may read it without running any line here
            paths = tests_of(file)
            tests = sorted((s, i) for i, (s, _) in reached.items() if session.items[i].path in paths)
        return tests

    def _judge(self, session, module, tree, tests, apart):
        """Return the verdict of a process of its own, which has limited time."""
        needed = sum(s for s, _ in tests)
        limit = 30 + min(10 * needed, max(self.budget, 3 * needed)) + (900 if apart else 0)
        return _in_child(lambda: self._verdict(session, module, tree, tests, apart), limit)

    def _verdict(self, session, module, tree, tests, apart):
        fresh = {**{k: v for k, v in vars(module).items() if k.startswith("__")}}
        try:
            exec(compile(tree, module.__file__, "exec"), fresh)
            transplant(vars(module), fresh, module.__name__)
        except Exception as error:
            return f"killed by {type(error).__name__}{_ON_IMPORT}"
        for _, number in tests:
            if not self._run(session.items[number]):
                return f"killed by {session.items[number].nodeid}"
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "mutant.py")
            pathlib.Path(path).write_text(ast.unparse(tree), encoding="utf-8")
            start = IN_PROCESSES.format(module=module.__name__, path=path)
            pathlib.Path(folder, "sitecustomize.py").write_text(start, encoding="utf-8")
            os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
            for item, following in zip(apart, [*apart[1:], None]):
                if not self._run(item, following):
                    return f"killed by {item.nodeid}"
        return "survived"


def _in_child(work, seconds):
    """Return what `work()` returns in a forked process, or how that ended."""
    with tempfile.NamedTemporaryFile() as file:
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)
                os.dup2(nowhere.fileno(), 1)
            try:
                pathlib.Path(file.name).write_bytes(pickle.dumps(work()))
            finally:
                os._exit(0)
        end = time.monotonic() + seconds
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > end:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return "killed by the time limit"
            time.sleep(0.005)
        data = pathlib.Path(file.name).read_bytes()
        return pickle.loads(data) if data else "killed by a crash"


def main():
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", default=files(), help=f"below paddle_ldopt/; all of {', '.join(ROOMS)}")
    parser.add_argument("--sample", type=int, default=40, help="mutants per file, at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", type=float, default=300.0, help="most seconds per mutant, or 3 times its tests")
    how = parser.parse_args()
    gone = [file for file in {*how.files, *MORE, *sum(APART.values(), [])} if not (PACKAGE / file).exists()]
    if gone:
        parser.error(f"the package has no {', '.join(sorted(gone))}")
    runner = Runner(how.files, how.sample, how.seed, how.budget)
    tests = sorted({str(test) for file in how.files for test in tests_of(file)})
    os.chdir(ROOT)
    pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "no:xdist", *tests], plugins=[runner])
    killed = sum(result[-1].startswith("killed") for result in runner.results)
    print(f"{killed} of {len(runner.results)} killed: {100 * killed / max(1, len(runner.results)):.1f} %")
    return int(killed < 0.9 * len(runner.results) or not runner.results)


if __name__ == "__main__":
    sys.exit(main())
