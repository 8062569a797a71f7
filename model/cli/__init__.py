"""Commands that come with the simulator and the trainer."""
