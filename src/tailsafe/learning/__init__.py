"""The shared engine of all learners, tabular and deep. So far: the dual QP and the weights it gives."""
