"""The algorithms, each a short file on the shared engine in `tailsafe.learning`."""
