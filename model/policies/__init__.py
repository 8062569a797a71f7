"""Policies that the simulator has beside the service's: what is compared with, a file for each."""
