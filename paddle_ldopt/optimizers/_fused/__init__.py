"""The fused step: `step` decides what the C library updates, `plan` prepares its structs."""
