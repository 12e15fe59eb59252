"""The two physics engines and the models they run."""
