"""Planning a batch of pods: pure functions."""
