"""A step of an optimizer, without the classes of `_base`, whose docstring shows the way of a step.

`interfaces` declares all that the other modules read from an optimizer. `whole_step` reads the inputs of a step
that needs only clipping and updates, and gives it to a backend: `fused_step` (the C library; `plan` prepares its
structs, `state_snapshot` shows whether they are still valid) or `operations` (Paddle's operations, on `batches` of
parameters). `updates` does a single `task`, one parameter of Paddle's loop. `tensor_memory` reads addresses.
"""
