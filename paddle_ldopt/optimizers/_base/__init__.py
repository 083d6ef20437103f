"""The base classes of the optimizers and their step.

The bases, the first one outermost:

- `RuleOptimizer` (rule_optimizer.py) updates by a pure function, and has states, counts and groups. `AdamWDL` is not a
  `RuleOptimizer`: it has Paddle's own update (`LayerwiseAdamW`).
- `LayerwiseOptimizer` (layerwise_optimizer.py) checks the arguments and takes the steps.
- `StatesMixin` (states_mixin.py) describes the states of each parameter and loads them; its base `OptionsMixin`
  (options_mixin.py) has the options of each parameter.
- `LayerwiseMixin` (layerwise_mixin.py) multiplies each parameter's rate by its layer's ratio, in any Paddle optimizer.
- `RatedOptimizer` (`layers`) declares all attributes that `layers` reads from an optimizer.

A subclass may put a mixin before `RuleOptimizer`: `StepSchedulesMixin` (rates and decays that follow the steps),
`SharedStepCount` (one count of steps for all parameters).

`LayerwiseOptimizer.step` takes a dygraph step in one of two ways:

- A whole step (`_step/whole_step.py`) needs only clipping and updates of plain tensors. All inputs are read at once,
  and a backend takes the step with a plan that holds until an input other than a value changes: the C library
  (`_step/fused_step.py`) or Paddle's operations (`_step/operations.py`).
- Paddle's loop takes all other steps. `_apply_optimize`, which Paddle calls for each parameter group, checks the
  gradients and lets Paddle clip them; `_append_optimize_op`, which Paddle calls for each parameter, appends a `Task`
  with its options and rate; `_update` lets the C library, then Paddle's operations (`_step/batches.py`,
  `_step/updates.py`) do them.

`minimize` and the sharding wrappers enter Paddle's loop at `_apply_optimize`. In a static graph `_append_optimize_op`
adds the operations of the parameter.
"""
