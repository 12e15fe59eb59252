"""Environments: tasks on an engine, in batches or one at a time."""
