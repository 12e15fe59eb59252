"""Small quadratic programs and weight strategies: what exact and deep methods share."""
