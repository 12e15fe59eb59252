"""Training: configuration, the loop, checkpoints, logs, resuming, and many runs in one program."""
