"""Scores of classes, sets of labels and scores, by scikit-learn and SciPy; the most confident mistakes."""

import dataclasses
from collections import Counter
from typing import Callable

import numpy as np
from paddle.nn import functional
from scipy import stats
from scipy.special import softmax
from sklearn import metrics

from . import silent
from .fine_tuning import Score
from .trainers import logits_of

CLASSES, LABELS, SCORES = ("accuracy", "macro_f1", "matthews"), ("micro_f1", "macro_f1", "exact"), ("rmse", "pearson")
MISTAKES = 10


@dataclasses.dataclass(frozen=True)
class Kind:
    """What belongs to one kind of label: its metrics (the first is the main one), loss, scores, baseline."""

    names: tuple
    loss: Callable
    scores: Callable  # of logits and the labels that the loss takes
    baseline: Callable  # Parts -> `Score` on the test rows


def of_kind(splits):
    return {
        "classes": Kind(CLASSES, functional.cross_entropy, class_scores, lambda: majority_score(splits.test)),
        "labels": Kind(LABELS, functional.binary_cross_entropy_with_logits, label_scores, lambda: _usual(splits)),
        "scores": Kind(SCORES, functional.mse_loss, _scores_of(splits), lambda: _mean(splits)),
    }[splits.kind]


def majority_score(rows):
    """Return the `Score` by which (input, class) rows are judged: accuracy, against the most frequent class."""
    return Score("accuracy", "majority class", Counter(label for _, label in rows).most_common(1)[0][1] / len(rows))


def _usual(splits):
    """Return the score of the most frequent set of labels in the training rows."""
    usual = Counter(label for _, label in splits.train).most_common(1)[0][0]
    right = np.array([splits.target(label) for _, label in splits.test])
    found = label_scores(2 * np.tile(splits.target(usual), (len(right), 1)) - 1, right)
    return Score("micro_f1", "most frequent set", found["micro_f1"])


def _mean(splits):
    mean, _ = splits.scale
    return Score("rmse", "mean score", float(np.sqrt(np.mean([(score - mean) ** 2 for _, score in splits.test]))))


@silent()
def class_scores(logits, labels):
    predicted = np.argmax(logits_of(logits), axis=-1)
    return {
        "accuracy": float(metrics.accuracy_score(labels, predicted)),
        "macro_f1": float(metrics.f1_score(labels, predicted, average="macro", zero_division=0)),
        "matthews": float(metrics.matthews_corrcoef(labels, predicted)),
    }


def label_scores(logits, labels):
    predicted, right = np.asarray(logits_of(logits)) > 0, np.asarray(labels) > 0.5
    f1 = lambda kind: float(metrics.f1_score(right, predicted, average=kind, zero_division=0))  # noqa: E731
    return {"micro_f1": f1("micro"), "macro_f1": f1("macro"), "exact": float((predicted == right).all(1).mean())}


def _scores_of(splits):
    def scores(logits, labels):
        deviation = splits.scale[1]
        found, right = (np.asarray(values, "float64").flatten() * deviation for values in (logits_of(logits), labels))
        constant = len(found) < 2 or found.std() == 0 or right.std() == 0
        pearson = 0.0 if constant else float(stats.pearsonr(found, right).statistic)
        return {"rmse": float(np.sqrt(np.mean((found - right) ** 2))), "pearson": pearson}

    return scores


def judge(logits, right, names, inputs, kind="classes"):
    """Return scores by class and the most confident mistakes as results, and as tables.

    `right` are the labels as the loss takes them; `inputs` are texts, pairs or images.
    """
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
    wrong = [i for i in np.argsort(-sure, kind="stable") if predicted[i] != right[i]][:MISTAKES]
    rows = [(shown(inputs[i]), names[right[i]], names[predicted[i]], f"{sure[i]:.3f}") for i in wrong]
    tables["Most confident mistakes"] = (("input", "label", "predicted", "probability"), rows)
    return found, {title: cells for title, cells in tables.items() if cells[1]}


def _by_class(names, each, title):
    columns = ("precision", "recall", "f1", "rows")
    found = {name: dict(zip(columns, map(float, row))) for name, *row in zip(names, *each)}
    return {"classes": found}, {f"Test rows by {title}": table_of_scores(title, found, columns)}


def table_of_scores(title, found, columns):
    """Return header and rows for name -> {column: score}; the last column counts, and without a count is no score."""
    *scores, count = columns
    cell = lambda row, column: f"{row[column]:.3f}" if row[count] else "-"  # noqa: E731
    rows = [(name, *(cell(row, column) for column in scores), int(row[count])) for name, row in found.items()]
    return (title, *columns), rows


def shown(given, most=200):
    """Return an input as a cell of the report; an image stays a path or an array, of which a thumbnail is shown."""
    if not isinstance(given, (str, tuple)):
        return given
    text = given if isinstance(given, str) else " / ".join(given)
    return text if len(text) <= most else f"{text[:most]}..."
