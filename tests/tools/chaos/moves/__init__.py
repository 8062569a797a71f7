"""Runs in which room is made: pods that controllers own are moved by plans that are carried out all through the run."""
