"""A cluster's past, simulated under other policies and beside what really happened."""
