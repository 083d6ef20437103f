"""The base of the optimizers, and the path of one dygraph step through it.

`RuleOptimizer.step` and the methods below it (rule_optimizer.py) are the step on one page:

1. If nothing but the gradients has changed since the last step by operations, the step is taken like it (repeated.py).
2. `FusedMixin.step` (`_fused/step.py`) takes the whole step in the C library if it needs nothing but updates.
3. Otherwise `LayerwiseMixin.step` (layerwise.py) computes and checks the ratio of every parameter.
4. Paddle's `Optimizer.step` collects the gradients and clips them, group by group, and calls `_apply_optimize`, which
   checks them and creates missing state (`_create_accumulators` in rule_state.py).
5. Paddle calls `_append_optimize_op` for each parameter, which collects a `Task` with its options and its rate
   (collecting.py). Nothing has changed until here.
6. `_update` does the tasks: in the C library if it can, otherwise by the class's `rule`, in batches of one shape
   (batches.py) or one by one (updates.py).

A static graph has neither 1 nor 2, and 5 builds the operations of each parameter. `ShardedStateMixin` has no part in a
step: it describes the state for checkpoints.
"""
