"""The fused step: `step` selects the parameters that the C library updates, `plan` prepares its structs."""
