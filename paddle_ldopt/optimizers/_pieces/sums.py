"""How update rules over pieces run: each request for sums is answered with those over all pieces of the tensor."""

from collections.abc import Generator
from typing import Any

import paddle
import paddle.distributed as dist

from .piece import Piece

__all__ = ["answer_locally", "answer_together"]

Rule = Generator[list[Any], list[Any], Any]


def answer_locally(rule: Rule) -> Any:
    """Run a rule whose tensors are whole, so that each request is its own answer; return what the rule returns."""
    try:
        request = next(rule)
        while True:
            request = rule.send(request)
    except StopIteration as done:
        return done.value


def answer_together(rules: list[tuple[Piece, Rule]]) -> list[Any]:
    """Run rules side by side, the same in all processes; one `all_reduce` a group and round adds their sums up."""
    results: list[Any] = [None] * len(rules)
    answers: dict[int, Any] = dict.fromkeys(range(len(rules)))
    while answers:
        requests = {}
        for index, answer in answers.items():
            try:
                requests[index] = rules[index][1].send(answer)
            except StopIteration as done:
                results[index] = done.value
        answers = _added_up({index: (rules[index][0].groups, request) for index, request in requests.items()})
    return results


def _added_up(requests: dict[int, tuple[Any, list[Any]]]) -> dict[int, list[Any]]:
    """Return, for each {key: (groups, tensors)}, the sums of the tensors over the groups."""
    by_groups: dict = {}
    for key, (groups, tensors) in requests.items():
        by_groups.setdefault(tuple(group.id for group in groups), (groups, {}))[1][key] = tensors
    answers = {}
    for groups, asked in by_groups.values():
        parts = [tensor for tensors in asked.values() for tensor in tensors]
        dtype = paddle.float64 if any(part.dtype == paddle.float64 for part in parts) else paddle.float32
        packed = paddle.concat([part.astype(dtype).flatten() for part in parts])
        for group in groups:
            dist.all_reduce(packed, group=group)
        sums = iter(paddle.split(packed, [part.size for part in parts]))
        for key, tensors in asked.items():
            answers[key] = [next(sums).astype(part.dtype).reshape(part.shape) for part in tensors]
    return {key: answers[key] for key in requests}
