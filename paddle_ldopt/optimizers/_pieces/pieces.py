"""What a process holds of a parameter, and how the update rules of several processes reach sums over all of it.

A rule is a generator that sees the tensors of one piece. For what it needs of the whole tensor it sums over its piece,
yields the sums, and is answered with those of all pieces. A `Piece` makes the sums that keep a dimension (of the rows,
the columns, the channels of a convolution) and spreads what was computed from them over its elements again. Such sums
have the size of the whole tensor's in every piece, with zeros where the piece has no element, so that adding the pieces
up is all that there is to do.
"""

import copy
import functools
import math

import paddle
import paddle.distributed as dist

from ..._paddle import topology


class Piece:
    """A part of a tensor: all of it, a tensor-parallel part, some of the flattened elements of either.

    Args:
        shape (list[int]): of the whole tensor.
        split (tuple[int, int, int], optional): (axis, index, parts): tensor parallel, part `index` of equal `parts`.
        span (tuple[int, int], optional): the flattened elements from the first to before the second, of the part if
            there is a `split`. The rule's tensors are then of one dimension.
        groups (tuple[Group]): groups of processes; over one after the other the sums of the pieces are added up.
        slice_size (int, optional): of a flat slice with padding behind it, how many elements are the parameter's. They
            are what the rule sees: flat with a `span`, in the parameter's shape if they are all of it.
    """

    def __init__(self, shape, split=None, span=None, groups=(), slice_size=None):
        self.shape, self.split, self.span, self.groups = list(shape), split, span, tuple(groups)
        self.part_shape = list(shape)  # of the part that `span` is a range of
        if split is not None:
            self.part_shape[split[0]] //= split[2]
        self.slice_size = slice_size

    # ---- what is stored, and what the rule sees of it

    def view(self, stored):
        """Return what the rule sees of a tensor of the size of the parameter; it may share memory."""
        if self.slice_size is None:
            return stored
        valid = stored._slice(0, self.slice_size)
        return valid if self.span else valid.reshape(self.part_shape)

    def stored(self, stored):
        """Return the part of a stored tensor that a new value, flattened, is written to; it shares memory."""
        return stored._slice(0, self.slice_size)

    # ---- sums over the piece

    def row_sums(self, x):
        """Return the sums of the rows of the last two dimensions, [..., R] of a tensor [..., R, C]."""
        return self._leading_sums(x, len(self.shape) - 1)

    def col_sums(self, x):
        """Return the sums of the columns of the last two dimensions, [..., C] of a tensor [..., R, C]."""
        if self.span is None:
            return self._in_whole(_col_sums(x), len(self.shape) - 2)
        *batch, rows, cols = self.part_shape
        if math.prod(batch) == 1:
            sums = _col_sums(self._padded(x, cols)[1]).reshape([*batch, cols])
        else:
            first, matrices = self._padded(x, rows * cols)
            sums = _col_sums(matrices.reshape([-1, rows, cols])).flatten()
            sums = _placed(sums, first * cols, math.prod(batch) * cols).reshape([*batch, cols])
        return self._in_whole(sums, len(self.shape) - 2)

    def channel_sums(self, x):
        """Return the sums over all dimensions but the first."""
        return self._leading_sums(x, 1)

    # ---- and back to its elements

    def spread_rows(self, values):
        """Return, to be multiplied with the piece, the value of each element's row."""
        return self._spread_leading(values, len(self.shape) - 1)

    def spread_cols(self, values):
        """Return, to be multiplied with the piece, the value of each element's column."""
        values = self._of_whole(values, len(self.shape) - 2)
        if self.span is None:
            return values.unsqueeze(-2)
        *batch, rows, cols = self.part_shape
        first, last = self._covered(cols)
        if math.prod(batch) == 1:
            block = values.reshape([1, cols]).expand([last - first, cols])
        else:
            block = values.reshape([-1, cols])[paddle.arange(first, last) // rows]
        return self._cut(block, cols)

    def spread_product(self, rows, cols):
        """Return for each element the product of the values of its row and its column, a new tensor."""
        rows, cols = self.spread_rows(rows), self.spread_cols(cols)
        return paddle.matmul(rows, cols) if self.span is None and _is_large(rows, cols) else rows * cols

    def spread_channels(self, values):
        """Return, to be multiplied with the piece, the value of each element's index in the first dimension."""
        return self._spread_leading(values, 1)

    # ---- how

    def _leading_sums(self, x, dims):
        """Return the sums over all dimensions but the first `dims`."""
        kept = self.part_shape[:dims]
        if self.span is None:
            sums = x.sum(axis=list(range(dims, len(self.shape))))
        else:
            first, block = self._padded(x, math.prod(self.part_shape[dims:]))
            sums = _placed(block.sum(axis=-1), first, math.prod(kept)).reshape(kept)
        return self._in_whole(sums, None if self.split is None or self.split[0] < dims else self.split[0])

    def _spread_leading(self, values, dims):
        values = self._of_whole(values, None if self.split is None or self.split[0] < dims else self.split[0])
        if self.span is None:
            return values.reshape([*values.shape, *[1] * (len(self.shape) - dims)])
        width = math.prod(self.part_shape[dims:])
        first, last = self._covered(width)
        return self._cut(values.flatten()[first:last].unsqueeze(-1).expand([last - first, width]), width)

    def _covered(self, width):
        """Return the first row of this width that the span touches, and the one behind the last."""
        return self.span[0] // width, -(-self.span[1] // width)

    def _padded(self, x, width):
        """Return the number of the first row that the span touches, and `x` as whole rows, zeros around it."""
        (begin, end), (first, last) = self.span, self._covered(width)
        around = [paddle.zeros([size], x.dtype) for size in (begin - first * width, last * width - end)]
        return first, paddle.concat([around[0], x, around[1]]).reshape([last - first, width])

    def _cut(self, block, width):
        """Return the elements of the span out of whole rows."""
        offset = self._covered(width)[0] * width
        return block.flatten()[self.span[0] - offset : self.span[1] - offset]

    def _in_whole(self, sums, dropped):
        """Return sums over a tensor-parallel part among zeros, in the size of the whole tensor's."""
        if self.split is None or dropped == self.split[0]:
            return sums
        axis, index, parts = self.split
        axis -= dropped is not None and dropped < axis
        zeros = paddle.zeros_like(sums)
        return paddle.concat([sums if part == index else zeros for part in range(parts)], axis=axis)

    def _of_whole(self, values, dropped):
        """Return the values of a tensor-parallel part."""
        if self.split is None or dropped == self.split[0]:
            return values
        axis, index, parts = self.split
        return paddle.split(values, parts, axis=axis - (dropped is not None and dropped < axis))[index]


def _placed(values, first, size):
    """Return a vector of zeros with `values` in it from `first`."""
    around = [paddle.zeros([zeros], values.dtype) for zeros in (first, size - first - values.shape[0])]
    return paddle.concat([around[0], values, around[1]])


def _is_large(*factors):
    """Say whether a matrix product is the quick way: on a CPU, 25 times; a GPU would round it to TF32."""
    size = math.prod(math.prod(x.shape) for x in factors)
    return factors[0].ndim == 2 and paddle.in_dynamic_mode() and size > 4096 and factors[0].place.is_cpu_place()


def _col_sums(x):
    if _is_large(x):
        return paddle.matmul(paddle.ones([1, x.shape[0]], x.dtype), x).flatten()
    return x.sum(axis=-2)


def answer_locally(rule):
    """Run a rule whose tensors are whole: each request for sums over all pieces is its own answer."""
    try:
        request = next(rule)
        while True:
            request = rule.send(request)
    except StopIteration as done:
        return done.value


def answer_together(rules):
    """Run rules side by side and return what each returns; one `all_reduce` a group and round adds their sums up.

    Args:
        rules (list[tuple[Piece, Generator]]): the same pieces' rules, in the same order, in all processes of their
            groups.
    """
    results: list = [None] * len(rules)
    answers: dict = dict.fromkeys(range(len(rules)))
    while answers:
        requests = {}
        for index, answer in answers.items():
            try:
                requests[index] = rules[index][1].send(answer)
            except StopIteration as done:
                results[index] = done.value
        answers = _added_up({index: (rules[index][0].groups, request) for index, request in requests.items()})
    return results


def _added_up(requests):
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


class PieceFinder:
    """What an optimizer knows of the parameters it was built with, and finds out once `fleet` has wrapped it.

    Args:
        params (list[Tensor]): the parameters, before anything wraps them.
    """

    def __init__(self, params):
        self.params = {param.name: param for param in params}
        self._shapes = {name: list(param.shape) for name, param in self.params.items()}
        self._pieces: dict = {}
        self._found_for: tuple = (None, None)  # the parameter list and the topology that `_pieces` is of

    def __deepcopy__(self, memo):
        return PieceFinder(copy.deepcopy(list(self.params.values()), memo))  # the copies have other names

    def shape(self, param):
        """Return the shape of the whole tensor that a parameter is, or is a piece of."""
        shape = self._shapes.get(param.name)
        if shape is None:
            return list(param.shape)
        split = self._split(self.params[param.name])
        return shape if split is None else [n * split[2] if i == split[0] else n for i, n in enumerate(shape)]

    def check(self, param):
        """Raise if a parameter is neither one that the optimizer was built with nor a flat slice of one."""
        known = self.params.get(param.name)
        if known is None:
            raise ValueError(
                f"The optimizer updates each parameter by itself and was not built with '{param.name}': a wrapper has "
                "fused parameters into buffers or cut them up. Set sharding_configs.tensor_fusion=False; instead of "
                "group sharding of level 'p_g_os' use 'os_g', or sharding of stage 1. "
                f"Received: '{param.name}' of shape {list(param.shape)}"
            )
        shape, built_with = list(param.shape), self._shapes[param.name]
        if shape != built_with if param is known else len(shape) != 1:
            raise ValueError(
                f"'{param.name}' had another shape when the optimizer was built, and it is no slice of sharding stage "
                "1. Build the optimizer after the model is complete, and instead of group sharding of level 'p_g_os' "
                f"use 'os_g', or sharding of stage 1. Received: shape={shape}, built with {built_with}"
            )

    def find(self, parameter_list):
        """Return name -> `Piece` of the parameters that this process has to work on in a step.

        Every process of a group must come here in the same step: the first time they tell each other their slices.

        Args:
            parameter_list (list[Tensor]): the optimizer's as it is, wrapped or not.
        """
        if self._found_for[0] is not parameter_list or self._found_for[1] is not topology():
            if self.is_sliced(parameter_list):
                found = {name: self._sliced(name, spans) for name, spans in self._gather(parameter_list).items()}
            else:
                found = {name: self._unsliced(param) for name, param in self.params.items()}
            self._pieces = {name: piece for name, piece in found.items() if piece is not None}
            self._found_for = parameter_list, topology()
        return self._pieces

    def is_sliced(self, parameter_list):
        """Say whether sharding with `split_param` has put slices in the place of the parameters."""
        name = getattr(parameter_list[0], "name", None) if parameter_list else None  # a group has none
        return name in self.params and parameter_list[0] is not self.params[name]

    def _unsliced(self, param):
        split = self._split(param)
        groups = () if split is None else (topology().get_model_parallel_group(),)
        return Piece(self.shape(param), split, groups=groups)

    def _split(self, param):
        """Return (axis, index, parts) of a tensor-parallel parameter, None of another."""
        hcg = topology()
        if hcg is None or hcg.get_model_parallel_world_size() == 1 or not getattr(param, "is_distributed", False):
            return None
        axis = getattr(param, "split_axis", None)
        if axis is None:
            raise ValueError(
                "A tensor-parallel parameter must say which axis it is split along, as those of Paddle's layers do: "
                f"set `split_axis`. Received: '{param.name}' with is_distributed=True and no split_axis"
            )
        return axis, hcg.get_model_parallel_rank(), hcg.get_model_parallel_world_size()

    def _gather(self, parameter_list):
        """Return name -> [(begin, end) of the flattened parameter that each process of the sharding group holds]."""
        held = {param.name: param.shape[0] for param in parameter_list if param._is_initialized()}
        all_held: list = []
        dist.all_gather_object(all_held, held, group=topology().get_sharding_parallel_group())
        slices = {}
        for name, shape in self._shapes.items():
            size, ends = math.prod(shape), [0]
            for held in all_held:
                ends.append(ends[-1] + held.get(name, 0))
            if 0 < ends[-1] < size:
                raise ValueError(
                    f"The slices of '{name}' in the sharding group do not make up the parameter. "
                    f"Received: slices of {ends[-1]} elements, shape={shape}"
                )
            if ends[-1]:  # padding lies behind the last element
                slices[name] = [(min(begin, size), min(end, size)) for begin, end in zip(ends, ends[1:])]
        return slices

    def _sliced(self, name, spans):
        """Return this process's `Piece` of a sliced parameter, None if another holds all of it."""
        hcg, param = topology(), self.params[name]
        split, shape = self._split(param), self.shape(param)
        groups = () if split is None else (hcg.get_model_parallel_group(),)
        begin, end = spans[hcg.get_sharding_parallel_rank()]
        if (0, math.prod(self._shapes[name])) in spans:
            return None if begin == end else Piece(shape, split, groups=groups, slice_size=end)
        span = (begin, end) if begin < end else (0, 0)
        return Piece(shape, split, span, (hcg.get_sharding_parallel_group(), *groups), slice_size=end - begin)


class MissingGradients:
    """Parameters without a gradient so far in any process: sharding gives them zeros, which would decay them.

    Args:
        params (list[Tensor]): the optimizer's, before anything wraps them.
    """

    def __init__(self, params):
        hcg, self._here, self._params = topology(), set(), []
        self.names: list = []  # names of those without one when `drop_from` was last called
        if hcg is None or hcg.get_sharding_parallel_world_size() == 1:
            return
        self._params, self.names = params, [param.name for param in params]
        for param in params:
            if param.stop_gradient:  # if it is unfrozen later, it counts as having one
                self._here.add(param.name)
            else:
                param._register_backward_hook(functools.partial(self._here.add, param.name))

    def __deepcopy__(self, memo):
        return MissingGradients([])

    def drop_from(self, params_grads):
        """Return updates without those of parameters that had no gradient yet; all processes must call this.

        A parameter counts as having a gradient from its first on, as after `clear_grad()`, which leaves zeros.

        Raises:
            ValueError: processes have frozen different parameters. Nothing is changed by then.
        """
        if not self.names:
            return params_grads
        given = {
            param.name
            for param, grad in params_grads
            if grad is not None and param.name not in self._here and bool(grad.any())
        }
        frozen = [param.stop_gradient for param in self._params]
        seen = [param.name in self._here | given for param in self._params]
        flags = paddle.to_tensor([seen, frozen, [not idle for idle in frozen]], "int32")
        for group in (topology().get_sharding_parallel_group(), topology().get_data_parallel_group()):
            if group.nranks > 1:
                dist.all_reduce(flags, dist.ReduceOp.MAX, group)
        seen, frozen, trained = flags.numpy()
        for param, differs in zip(self._params, frozen & trained):
            if differs:
                raise ValueError(
                    "Processes that share parameters must freeze the same ones: set `stop_gradient` alike on all. "
                    f"Received: '{param.name}' with stop_gradient={param.stop_gradient} here, the opposite elsewhere"
                )
        self.names = [param.name for param, has in zip(self._params, seen) if not has]
        return [(param, grad) for param, grad in params_grads if param.name not in self.names]

    def are_elsewhere(self):
        """Return whether some parameters lack a gradient, so that a process may have no updates, and some have one."""
        return 0 < len(self.names) < len(self._params)


def refuse_sharded_groups(parameters):
    """Raise if an optimizer that `fleet` will shard is given parameter groups, which Paddle cannot shard."""
    groups = [item for item in parameters or [] if isinstance(item, dict)]
    hcg = topology()
    if groups and hcg is not None and hcg.get_sharding_parallel_world_size() > 1:
        raise ValueError(
            "Paddle's sharding takes a plain list of parameters: give rates by layer with `layers` or "
            "`set_param_lr_fun`, leave parameters out of the decay with `apply_decay_param_fun`, or shard nothing "
            "(sharding_degree=1). "
            f"Received: {len(groups)} groups, sharding_degree={hcg.get_sharding_parallel_world_size()}"
        )
