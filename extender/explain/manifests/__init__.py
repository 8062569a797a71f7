"""Objects that make pods, as their authors write them: which pods each makes, and which of these start together."""
