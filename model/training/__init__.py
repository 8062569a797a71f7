"""Fitting the learned rank: evolution strategies, tasks, checkpoints."""
