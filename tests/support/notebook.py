"""Run the code cells of a notebook, one after the other in one namespace, as Jupyter does."""

import ast
import contextlib
import io
import json
import types


def code_cells(path):
    """Return [(source, saved outputs)] of the code cells."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [("".join(cell["source"]), cell["outputs"]) for cell in cells if cell["cell_type"] == "code"]


def saved_text(outputs):
    """Return what a cell printed when the notebook was saved."""
    return "".join("".join(output["text"]) for output in outputs if output["output_type"] == "stream")


def run_notebook(path):
    """Return (namespace, [what each code cell prints]); the value of a last expression is dropped."""
    module = types.ModuleType("__main__")
    printed = []
    for source, _ in code_cells(path):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(ast.parse(source), str(path), "exec"), vars(module))
        printed.append(out.getvalue())
    return vars(module), printed
