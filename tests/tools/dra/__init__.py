"""What of devices Kerf finds possible, beside what kube-scheduler's own allocator does: `python -m tests.tools.dra`."""
