"""The fused step: `fused_step` selects the parameters that the C library updates, `plan` prepares its structs."""
