"""Scores of classes, sets of labels and scores, by scikit-learn and SciPy; confusions and mistakes.

of_kind(splits).metrics(prediction)      # of the Trainer's `compute_metrics`
of_kind(splits).judge(texts)(logits, right)   # -> details for results.json, tables for the report
"""

import dataclasses
import warnings
from collections import Counter
from typing import Callable

import numpy as np
from paddle.nn import functional
from scipy import stats
from scipy.special import softmax
from sklearn import metrics

from .fine_tuning import Score
from .trainers import logits_of

CLASSES, LABELS, SCORES = ("accuracy", "macro_f1", "matthews"), ("micro_f1", "macro_f1", "exact"), ("rmse", "pearson")
METRICS = (*CLASSES, *LABELS[::2], *SCORES, "loss")
MOST = 12  # most classes for a confusion matrix in the report; with more, it lists the most frequent confusions
MISTAKES = 10
MISTAKE = ("input", "label", "predicted", "probability")


@dataclasses.dataclass(frozen=True)
class Kind:
    """What belongs to one kind of label: its metrics (the first is the main one), loss, scores, baseline."""

    names: tuple
    loss: Callable
    scores: Callable  # of logits and the labels that the loss takes
    baseline: Callable  # Parts -> `Score` on the test rows


def of_kind(splits):
    """Return the `Kind` of the labels of these `Splits`."""
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


def class_scores(logits, labels):
    """Return accuracy, macro F1 and Matthews correlation of logits."""
    predicted = np.argmax(logits_of(logits), axis=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of rows of a single class
        return {
            "accuracy": float(metrics.accuracy_score(labels, predicted)),
            "macro_f1": float(metrics.f1_score(labels, predicted, average="macro", zero_division=0)),
            "matthews": float(metrics.matthews_corrcoef(labels, predicted)),
        }


def label_scores(logits, labels):
    """Return micro F1, macro F1 and the share of rows with exactly the right labels."""
    predicted, right = np.asarray(logits_of(logits)) > 0, np.asarray(labels) > 0.5
    found = {
        f"{kind}_f1": metrics.f1_score(right, predicted, average=kind, zero_division=0) for kind in ("micro", "macro")
    }
    return {**{name: float(value) for name, value in found.items()}, "exact": float((predicted == right).all(1).mean())}


def _scores_of(splits):
    def scores(logits, labels):
        deviation = splits.scale[1]
        found, right = (np.asarray(values, "float64").flatten() * deviation for values in (logits_of(logits), labels))
        constant = len(found) < 2 or found.std() == 0 or right.std() == 0
        pearson = 0.0 if constant else float(stats.pearsonr(found, right).statistic)
        return {"rmse": float(np.sqrt(np.mean((found - right) ** 2))), "pearson": pearson}

    return scores


def judge(names, inputs=None, kind="classes"):
    """Return a function (logits, labels) -> `details`, and their `tables`."""

    def judged(logits, labels):
        logits = np.asarray(logits_of(logits), "float64")
        if kind == "scores":
            return {}, {}
        if kind == "labels":
            each = metrics.precision_recall_fscore_support(np.asarray(labels) > 0.5, logits > 0, zero_division=0)
            found = {"classes": _by_class(names, each)}
            return found, {"Test rows by label": _class_table(found["classes"])}
        more = details(logits, labels, names, inputs)
        shown = tables(more)
        for mistake in more["mistakes"]:  # results.json has the name of an image, and not its pixels
            kept = isinstance(mistake["input"], (str, tuple))
            mistake["input"] = mistake["input"] if kept else getattr(mistake["input"], "name", "an image")
        return more, shown

    return judged


def _by_class(names, each):
    columns = ("precision", "recall", "f1", "rows")
    return {name: dict(zip(columns, map(float, row))) for name, *row in zip(names, *each)}


def details(logits, right, names, inputs=None):
    """Return precision, recall and F1 of each class, the confusion matrix, the most confident mistakes.

    `right` are the class numbers of the rows. Mistakes are listed if `inputs` are given: texts, pairs, images.
    """
    probabilities, right = softmax(logits, axis=-1), np.asarray(right)
    predicted, numbers = probabilities.argmax(-1), np.arange(len(names))
    each = metrics.precision_recall_fscore_support(right, predicted, labels=numbers, zero_division=0)
    matrix, sure = metrics.confusion_matrix(right, predicted, labels=numbers), probabilities.max(-1)
    wrong = [i for i in np.argsort(-sure, kind="stable") if predicted[i] != right[i]] if inputs is not None else []
    rows = [(inputs[i], names[right[i]], names[predicted[i]], float(sure[i])) for i in wrong[:MISTAKES]]
    return {
        "classes": _by_class(names, each),
        "confusion matrix": {"rows are the true classes, columns the predicted": matrix.tolist(), "classes": names},
        "mistakes": [dict(zip(MISTAKE, row)) for row in rows],
    }


def _class_table(classes):
    """Return header and rows; a class without test rows has no scores."""
    cells = [
        (
            name,
            *(f"{row[column]:.3f}" if row["rows"] else "-" for column in ("precision", "recall", "f1")),
            int(row["rows"]),
        )
        for name, row in classes.items()
    ]
    return ("class", "precision", "recall", "F1", "rows"), cells


def tables(results):
    """Return the result of `details` as tables: title -> (header, rows)."""
    names, (matrix, _) = list(results["classes"]), results["confusion matrix"].values()
    out = {"Test rows by class": _class_table(results["classes"])}
    if len(names) <= MOST:
        out["Confusion matrix"] = (("true \\ predicted", *names), [(n, *row) for n, row in zip(names, matrix)])
    else:
        pairs = [(a, b, matrix[i][j]) for i, a in enumerate(names) for j, b in enumerate(names) if i != j]
        often = [pair for pair in sorted(pairs, key=lambda pair: -pair[2])[:20] if pair[2]]
        if often:
            out["Most frequent confusions"] = (("true class", "predicted", "rows"), often)
    if results["mistakes"]:
        rows = [tuple(mistake[name] for name in MISTAKE) for mistake in results["mistakes"]]
        rows = [(shown(given), label, predicted, f"{share:.3f}") for given, label, predicted, share in rows]
        out["Most confident mistakes"] = (("input", *MISTAKE[1:]), rows)
    return out


def shown(given, most=200):
    """Return an input as a cell of the report; an image stays a path or an array, of which a thumbnail is shown."""
    if not isinstance(given, (str, tuple)):
        return given
    text = given if isinstance(given, str) else " / ".join(given)
    return text if len(text) <= most else f"{text[:most]}..."
