"""Making room: which pods to move, where and in which order, so that a target fits. Pure functions."""
