"""Runs: configuration, the training loop, checkpoints, saved policies and their evaluation."""
