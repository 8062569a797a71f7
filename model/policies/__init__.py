"""Baseline policies of the simulator in addition to the service's, one file each."""
