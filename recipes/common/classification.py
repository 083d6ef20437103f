"""Scores of a classifier by scikit-learn: accuracy, macro F1, Matthews correlation, confusions and mistakes.

class_scores(prediction)                 # of the Trainer's `compute_metrics`
judge(names, texts)(logits, right)       # -> details for results.json, tables for the report
"""

import warnings
from collections import Counter

import numpy as np
from scipy.special import softmax
from sklearn import metrics

from .fine_tuning import Score
from .trainers import logits_of

METRICS = ("accuracy", "macro_f1", "matthews", "loss")
MOST = 12  # most classes for a confusion matrix in the report; with more, it lists the most frequent confusions
MISTAKES = 10
MISTAKE = ("input", "label", "predicted", "probability")


def majority_score(rows):
    """Return the `Score` by which (input, class) rows are judged: accuracy, against the most frequent class."""
    return Score("accuracy", "majority class", Counter(label for _, label in rows).most_common(1)[0][1] / len(rows))


def class_scores(prediction):
    """Return accuracy, macro F1 and Matthews correlation of the Trainer's predictions."""
    return scores_of(np.argmax(prediction.predictions, axis=-1), prediction.label_ids)


def scores_of(predicted, labels):
    """Return the scores of predicted class numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of rows of a single class
        return {
            "accuracy": float(metrics.accuracy_score(labels, predicted)),
            "macro_f1": float(metrics.f1_score(labels, predicted, average="macro", zero_division=0)),
            "matthews": float(metrics.matthews_corrcoef(labels, predicted)),
        }


def judge(names, inputs=None):
    """Return a function (logits, labels) -> `details`, and their `tables`."""

    def judged(logits, labels):
        more = details(logits_of(logits), labels, names, inputs)
        return more, tables(more)

    return judged


def details(logits, right, names, inputs=None):
    """Return precision, recall and F1 of each class, the confusion matrix, the most confident mistakes.

    `right` are the class numbers of the rows. Mistakes are listed if `inputs` are given, the text or pair of each row.
    """
    probabilities, right = softmax(np.asarray(logits, "float64"), axis=-1), np.asarray(right)
    predicted, numbers = probabilities.argmax(-1), np.arange(len(names))
    each = metrics.precision_recall_fscore_support(right, predicted, labels=numbers, zero_division=0)
    columns = ("precision", "recall", "f1", "rows")
    matrix = metrics.confusion_matrix(right, predicted, labels=numbers)
    sure = probabilities.max(-1)
    wrong = [i for i in np.argsort(-sure, kind="stable") if predicted[i] != right[i]] if inputs is not None else []
    return {
        "classes": {name: dict(zip(columns, map(float, row))) for name, *row in zip(names, *each)},
        "confusion matrix": {"rows are the true classes, columns the predicted": matrix.tolist(), "classes": names},
        "mistakes": [
            dict(zip(MISTAKE, (inputs[i], names[right[i]], names[predicted[i]], float(sure[i]))))
            for i in wrong[:MISTAKES]
        ],
    }


def tables(results):
    """Return the result of `details` as tables: title -> (header, rows)."""
    names, (matrix, _) = list(results["classes"]), results["confusion matrix"].values()
    columns = ("precision", "recall", "f1")
    classes = [  # a class without test rows has no scores
        (name, *(f"{row[column]:.3f}" if row["rows"] else "-" for column in columns), int(row["rows"]))
        for name, row in results["classes"].items()
    ]
    out = {"Test rows by class": (("class", "precision", "recall", "F1", "rows"), classes)}
    if len(names) <= MOST:
        out["Confusion matrix"] = (("true \\ predicted", *names), [(n, *row) for n, row in zip(names, matrix)])
    else:
        pairs = [(a, b, matrix[i][j]) for i, a in enumerate(names) for j, b in enumerate(names) if i != j]
        often = [pair for pair in sorted(pairs, key=lambda pair: -pair[2])[:20] if pair[2]]
        if often:
            out["Most frequent confusions"] = (("true class", "predicted", "rows"), often)
    if results["mistakes"]:
        rows = [tuple(mistake[name] for name in MISTAKE) for mistake in results["mistakes"]]
        rows = [(_shown(text), label, predicted, f"{share:.3f}") for text, label, predicted, share in rows]
        out["Most confident mistakes"] = (("text", *MISTAKE[1:]), rows)
    return out


def _shown(text, most=200):
    text = text if isinstance(text, str) else " / ".join(text)
    return text if len(text) <= most else f"{text[:most]}..."
