"""Runs: configuration, the training loop, checkpoints, logs, shareable policies and their evaluation."""
