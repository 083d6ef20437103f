"""What the optimizers share, and the path of one dygraph step through it, in the order of the bases of `RuleOptimizer`.

1. `FusedMixin.step` (`_fused/step.py`) takes the whole step in the C library if nothing but updates is to be done.
2. Otherwise `LayerwiseMixin.step` (layerwise.py) asks for the ratio of every parameter and checks it.
3. Paddle's `Optimizer.step` collects the gradients and clips them, group by group, and calls `_apply_optimize`, which
   checks them and creates missing state (`_create_accumulators`).
4. `DeclaredMixin._create_optimization_pass` (declared.py) has Paddle ask for each parameter's update, and
   `_append_optimize_op` notes it as a `Task` with its options and its rate. Until here nothing has changed.
5. `_update` does the tasks: in the C library those that it can do, all others by the class's `rule`, those of one shape
   together (batches.py).

If nothing has changed since, the next step by operations does 5 again and skips the others (repeated.py, before 1).
In a static graph there is no 1, and 4 builds the operations of each parameter as it is met. `ShardedStateMixin` has no
part in a step: it describes the state for checkpoints.
"""
