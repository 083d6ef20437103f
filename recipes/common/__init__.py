"""What the recipes share: data, the training around a Trainer, scores."""
