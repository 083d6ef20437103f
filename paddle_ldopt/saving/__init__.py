"""Until the Trainer's branch is merged, which no longer imports it."""
