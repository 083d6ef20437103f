"""Prompts with answers and conversations as rows of tokens, with labels for the answers alone; the unigram baseline."""

import numpy as np

from . import error
from .rows import Encoded, load_tables, rows_of_columns

IGNORED, VOCABULARY = -100, 256  # label of tokens without a loss; size of the vocabulary of bytes
ROLES = {"human": "user", "gpt": "assistant", "user": "user", "assistant": "assistant", "system": "system"}
ROLES |= {"bot": "assistant", "observation": "user", "function_call": "assistant", "tool": "user"}
ALPACA = "instruction + input"
TALKS = dict.fromkeys(("conversations", "messages"), "language_model_sft.py alone reads conversations")
REFUSED = {
    "conversation": "XTuner's `conversation` is not read: convert it to `messages` or `conversations` (ShareGPT)",
    "rejected": "No recipe trains on preferences (DPO): choose an answer's column with `--target_field`",
}


def with_prompts(names, table):
    """Add the prompts of Alpaca's rows as a column: the instruction and, if there is one, its input."""

    def prompt(cells):
        row = dict(zip(names, cells))
        asked = filter(None, (row.get("instruction"), row.get("input")))
        return "\n".join(map(str, asked)) if row.get("instruction") else None

    return [*names, ALPACA], [(place, [*cells, prompt(cells)]) for place, cells in table]


def load_pairs(options, own, conversations=False):
    """Return the `Parts` of (source, target) rows, or of conversations, of `options.data`."""
    given = {"source_field": options.source_field, "target_field": options.target_field}

    def rows(names, table, source, notes, wanted=given):
        refused = REFUSED if conversations else {**TALKS, **REFUSED}
        for i, name in enumerate(names if options.target_field is None else ()):
            if name in refused and any(c[i] if name == "rejected" else isinstance(c[i], list) for _, c in table):
                raise error(f"{refused[name]}.", source=source, columns=names)
        if {"instruction", "input", "output"} <= set(names) and options.source_field is None:
            names, table = with_prompts(names, table)
            wanted = {"source_field": ALPACA, "target_field": options.target_field or "output"}
        if conversations and (talks := talks_of(names, table, source)):
            answered = lambda turns: any(role == "assistant" and text for role, text in turns)  # noqa: E731
            notes.drop([(place, "answer") for place, turns in talks if not answered(turns)], len(talks), source)
            notes.unread.update({*names} - {*TALKS, "system"})
            return [turns for _, turns in talks if answered(turns)]
        if len(names) == 1:
            raise error("Prompts and answers need two columns; masked_lm_pretraining.py reads texts.", source=source)
        found = rows_of_columns(names, table, wanted, source, notes)
        notes.unread -= {"instruction", "input"} if ALPACA in names else set()
        return [(("user", a), ("assistant", b)) for a, b in found] if conversations else found

    return load_tables(options, given, rows, own=own, key=_asked)


def _asked(row):
    """Return a row's source, or a conversation's first question: a system prompt may be that of all rows."""
    return row[0] if isinstance(row[0], str) else next((text for role, text in row if role == "user"), row[0][1])


def talks_of(names, table, source):
    """Return (place, ((role, text), ...)) of ShareGPT's or OpenAI's conversations, None for other rows."""
    if (column := next((name for name in TALKS if name in names), None)) is None:
        return None
    talks = []
    for place, row in ((place, dict(zip(names, cells))) for place, cells in table):
        try:
            turns = list(map(_turn, row[column] or ()))
        except (KeyError, AttributeError, TypeError) as cause:
            problem = f"{place} has no turns with `from` and `value`, or `role` and `content` ({cause})."
            raise error(problem, source=source, roles=sorted(ROLES)) from cause
        if row.get("system"):
            turns = [("system", row["system"]), *turns]
        talks.append((place, tuple(turns) if all(isinstance(text, str) for _, text in turns) else ()))
    return talks


def _turn(turn):
    """Return role and text, which OpenAI's may give as a list of parts; images are refused."""
    text = turn.get("value", turn.get("content"))
    if isinstance(text, list):
        text = "".join(part["value" if part.get("type") == "text" and "value" in part else "text"] for part in text)
    return ROLES[turn.get("from", turn.get("role"))], text


def until_question(turns):
    return turns[: max((number for number, (role, _) in enumerate(turns, 1) if role == "user"), default=0)]


def by_bytes(messages):
    """Return [(tokens, whether they are learnt), ...] of a conversation, in bytes; a line break ends an answer."""
    return [(list((text + "\n" * (role == "assistant")).encode()), role == "assistant") for role, text in messages]


def by_tokenizer(tokenizer):
    """Return a function of a conversation, as `by_bytes`; it writes the tokenizer's chat template, if there is one."""
    template = getattr(tokenizer, "chat_template", None)
    template = template if hasattr(template, "render") else None

    def rendered(messages, answers):
        turns = [{"role": role, "content": text} for role, text in messages]
        text = template.render(messages=turns, add_generation_prompt=answers, **tokenizer.special_tokens_map)
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    def tokens(messages):
        parts, done = [], []
        for number, (role, text) in enumerate(messages):
            if template is None:
                ids = tokenizer(text, add_special_tokens=not number)["input_ids"]
                parts.append((ids + [tokenizer.eos_token_id] * (role == "assistant"), role == "assistant"))
            elif role == "assistant":  # the template says what stands before and after it
                asked, whole = rendered(messages[:number], True), rendered(messages[: number + 1], False)
                parts += [(asked[len(done) :], False), (whole[len(asked) :], True)]
                done = whole
            elif number == len(messages) - 1:
                parts.append((rendered(messages, True)[len(done) :], False))
        return parts

    return tokens


class Messages(Encoded):
    """Conversations as tokens and the next tokens of answers; first a long prompt is cut to half the room."""

    unit = "answer tokens"

    def __init__(self, rows, length, tokens=by_bytes):
        super().__init__()
        for row in rows:
            parts = tokens(row)
            over, before = sum(len(ids) for ids, _ in parts) - length - 1, len(parts[0][0])
            if over > 0 and not parts[0][1]:
                parts[0] = (parts[0][0][min(over, max(before - length // 2, 0)) :], False)
            ids = [token for part, _ in parts for token in part]
            labels = [token if learnt else IGNORED for part, learnt in parts for token in part]
            kept = labels[1 : length + 1]
            answers = sum(label != IGNORED for label in labels[1:])
            left = sum(label != IGNORED for label in kept)
            self.count(answers, answers - left, left)
            if left:
                self.append({"input_ids": np.array(ids[:length][: len(kept)]), "labels": np.array(kept)})
            if over > 0 and len(parts[0][0]) < before:
                self.also["prompts without their beginning"] += 1


def padded(rows, length):
    inputs, labels = np.zeros([len(rows), length], "int64"), np.full([len(rows), length], IGNORED, "int64")
    for i, row in enumerate(rows):
        inputs[i, : len(row["input_ids"])], labels[i, : len(row["labels"])] = row["input_ids"], row["labels"]
    return inputs, labels


def unigram(train, test, vocabulary):
    """Return the mean of -log p of test tokens, p the share of each among the training tokens, with counts + 1."""
    counts = np.bincount(train, minlength=vocabulary) + 1.0
    return float(-np.log(counts / counts.sum())[test].mean())
