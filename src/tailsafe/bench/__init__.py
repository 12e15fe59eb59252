"""Measurements of speed, as ratios inside one run."""
