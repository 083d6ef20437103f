"""A step of an optimizer, without the classes of `_base`, whose docstring shows the way of a step.

`whole_step` reads the inputs of a step that needs only clipping and updates, and gives it to a backend: `fused_step`
(the C library; `plan` prepares its structs), `operations` (Paddle's operations, on `batches` of parameters) or, for
AdamWDL, `kernel_step` (Paddle's kernel).
`updates` does a single `Task`, one parameter of Paddle's loop. `memory` shows whether a plan is still valid.
"""
