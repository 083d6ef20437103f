"""Scores of classes, sets of labels and scores, by scikit-learn and SciPy; the most confident mistakes."""

from collections import Counter

import numpy as np
from paddle.nn import functional
from scipy import stats
from scipy.special import softmax
from sklearn import metrics

from . import silent
from .fine_tuning import Score, logits_of

KINDS = {  # kind of label -> loss, metrics; the first metric is the main one
    "classes": (functional.cross_entropy, ("accuracy", "macro_f1", "matthews")),
    "labels": (functional.binary_cross_entropy_with_logits, ("micro_f1", "macro_f1", "exact")),
    "scores": (functional.mse_loss, ("rmse", "pearson")),
}


def baseline(splits):
    """Return the `Score` of a constant prediction on the test rows."""
    if splits.kind == "classes":
        return majority_score(splits.test)
    if splits.kind == "scores":
        deviations = [score - splits.scale[0] for _, score in splits.test]
        return Score("rmse", "mean score", float(np.sqrt(np.mean(np.square(deviations)))))
    right = np.array([splits.target(label) for _, label in splits.test])
    usual = Counter(label for _, label in splits.train).most_common(1)[0][0]
    found = 2 * np.tile(splits.target(usual), (len(right), 1)) - 1
    return Score("micro_f1", "most frequent set", scores(splits, found, right)["micro_f1"])


def majority_score(rows):
    """Return the `Score` by which (input, class) rows are judged: accuracy, against the most frequent class."""
    return Score("accuracy", "majority class", Counter(label for _, label in rows).most_common(1)[0][1] / len(rows))


def scores(splits, logits, labels):
    """Return the metrics of a model's logits, given the labels that the loss takes."""
    if splits.kind == "classes":
        return class_scores(logits, labels)
    logits, labels = (np.asarray(values, "float64") for values in (logits_of(logits), labels))
    if splits.kind == "labels":
        predicted, right = logits > 0, labels > 0.5
        f1 = lambda kind: float(metrics.f1_score(right, predicted, average=kind, zero_division=0))  # noqa: E731
        return {"micro_f1": f1("micro"), "macro_f1": f1("macro"), "exact": float((predicted == right).all(1).mean())}
    found, right = logits.flatten() * splits.scale[1], labels.flatten() * splits.scale[1]
    constant = len(found) < 2 or found.std() == 0 or right.std() == 0
    pearson = 0.0 if constant else float(stats.pearsonr(found, right).statistic)
    return {"rmse": float(np.sqrt(np.mean((found - right) ** 2))), "pearson": pearson}


@silent()
def class_scores(logits, labels):
    predicted = np.argmax(logits_of(logits), axis=-1)
    return {
        "accuracy": float(metrics.accuracy_score(labels, predicted)),
        "macro_f1": float(metrics.f1_score(labels, predicted, average="macro", zero_division=0)),
        "matthews": float(metrics.matthews_corrcoef(labels, predicted)),
    }


def judge(logits, right, names, rows, kind="classes"):
    """Return scores by class and the most confident mistakes as results, and as tables."""
    logits, right = np.asarray(logits_of(logits), "float64"), np.asarray(right)
    if kind == "scores":
        return {}, {}
    if kind == "labels":
        each = metrics.precision_recall_fscore_support(right > 0.5, logits > 0, zero_division=0)
        return _by_class(names, each, "label")
    shares, numbers = softmax(logits, axis=-1), np.arange(len(names))
    predicted, sure = shares.argmax(-1), shares.max(-1)
    each = metrics.precision_recall_fscore_support(right, predicted, labels=numbers, zero_division=0)
    found, tables = _by_class(names, each, "class")
    wrong = [i for i in np.argsort(-sure, kind="stable") if predicted[i] != right[i]][:10]
    cells = [(shown(rows[i][0]), names[right[i]], names[predicted[i]], f"{sure[i]:.3f}") for i in wrong]
    tables["Most confident mistakes"] = (("input", "label", "predicted", "probability"), cells)
    return found, {title: cells for title, cells in tables.items() if cells[1]}


def _by_class(names, each, title):
    columns = ("precision", "recall", "f1", "rows")
    found = {name: dict(zip(columns, map(float, row))) for name, *row in zip(names, *each)}
    return {"classes": found}, {f"Test rows by {title}": table_of_scores(title, found, columns)}


def table_of_scores(title, found, columns):
    """Return header and rows for name -> {column: score}; the last column counts, and without a count is no score."""
    *names, count = columns
    cell = lambda row, column: f"{row[column]:.3f}" if row[count] else "-"  # noqa: E731
    rows = [(name, *(cell(row, column) for column in names), int(row[count])) for name, row in found.items()]
    return (title, *columns), rows


def shown(given, most=200):
    """Return an input as a cell of the report; an image stays a path or an array, of which a thumbnail is shown."""
    if not isinstance(given, (str, tuple)):
        return given
    text = given if isinstance(given, str) else " / ".join(given)
    return text if len(text) <= most else f"{text[:most]}..."
