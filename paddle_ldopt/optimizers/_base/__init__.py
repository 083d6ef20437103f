"""The base classes of the optimizers and their step.

Each base inherits from the next one:

- `RuleOptimizer` updates by a function of tensors. `AdamWDL` is not a `RuleOptimizer`: it has Paddle's own update.
- `LayerwiseOptimizer` has the options and states of each parameter, and takes the steps.
- `LayerwiseMixin` multiplies each parameter's rate by its layer's ratio. It also serves Paddle's optimizers
  (`apply_layerwise_decay`).

`FactoredOptimizer` is the `RuleOptimizer` with a factored second moment, the base of `Adafactor` and `Came`.

The way of a step in dygraph, [in brackets the caller or condition]::

    step
     |-- take_whole_step            [only clipping and updates of plain tensors]
     |     StepInputs.of            reads all parameters and gradients at once
     |     FusedStep.take           C library, by its `Plan`     [a plan is kept until an input
     |     or Operations.take       or by its `OperationsPlan`;   other than a value changes]
     |                              of AdamWDL, KernelStep.take
     '-- Paddle's loop              [all other steps; `minimize`, sharding wrappers from `_apply_optimize` on]
           _apply_optimize          [each group] checks gradients; Paddle clips them
           _append_optimize_op      [each parameter] collects a `Task`: options, rate
           _update(tasks)           FusedStep.update, Operations.update for the rest, update_shards for shards

In a static graph `_append_optimize_op` adds the operations of the parameter.
"""
