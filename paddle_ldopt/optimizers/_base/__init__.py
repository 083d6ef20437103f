"""The base classes of the optimizers.

`LayerwiseOptimizer.step` (step.py) lists one dygraph step:

1. `_repeat_step`: if only the gradients differ from the last step, repeat it with the new ones (repeated.py).
2. `FusedStep.try_step` (`_fused/step.py`): take the whole step in the C library, if it needs only updates and clipping.
3. `_with_ratios` (layerwise.py): compute and check the ratio of every parameter.
4. `_apply_optimize`, which Paddle calls for each parameter group: check the gradients, then let Paddle clip them and
   create missing state (rule_state.py).
5. `_append_optimize_op`, which Paddle calls for each parameter: append a `Task` with its options and rate.
6. `_update`: do the tasks, in the C library, in batches of one shape (batches.py) or one by one (updates.py).

`minimize` and the sharding wrappers call 4 without `step`; it then includes 3, 5 and 6. In a static graph 5 adds the
operations of the parameter.
"""
