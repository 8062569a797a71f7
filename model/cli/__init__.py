"""Commands of the simulator and of training."""
