"""Scores of written texts; a Chinese, Japanese or Korean character counts as a word.

rouge(["the cat sat"], ["the cat sleeps"])      # {"rouge_1": 0.67, "rouge_l": 0.67}
"""

import re
from collections import Counter

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"


def words(text):
    """Return the words that ROUGE compares, without punctuation, around which some tokenizers put spaces."""
    return re.findall(rf"[{_CJK}]|[^\W{_CJK}]+", text.casefold())


def rouge(texts, references):
    """Return the mean F1 of common words, ROUGE-1, and of the longest common subsequence, ROUGE-L; 1 is best."""
    both = [(words(a), words(b)) for a, b in zip(texts, references)]
    counts = {"rouge_1": _in_common, "rouge_l": _longest_common}
    return {name: sum(_f1(count(a, b), a, b) for a, b in both) / len(both) for name, count in counts.items()}


def best_lead(rows):
    """Return the number of first words of a source that have the highest ROUGE-1 with its target."""
    split = [(words(source), words(target)) for source, target in rows[:300]]

    def score(n):
        return sum(_f1(_in_common(source[:n], target), source[:n], target) for source, target in split)

    return max(range(1, 4 * max(len(target) for _, target in split) + 2), key=score)


def _in_common(a, b):
    return sum((Counter(a) & Counter(b)).values())


def _f1(common, a, b):
    """Return the F1 of two texts with this many common words; 1 if both are empty."""
    return 2 * common / (len(a) + len(b)) if a or b else 1.0


def _longest_common(a, b):
    best = [0] * (len(b) + 1)
    for word in a:
        before = 0
        for j, other in enumerate(b, 1):
            before, best[j] = best[j], before + 1 if word == other else max(best[j], best[j - 1])
    return best[-1]
