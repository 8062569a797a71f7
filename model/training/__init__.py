"""Training of the learned rank: evolution strategies, PPO, tasks, checkpoints."""
