"""The policy file: written, loaded, played and exported without the learner that made it."""
