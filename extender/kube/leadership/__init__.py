"""Who leads: elections by a Lease, or none."""
