"""Pipelines: stages of steps, each step a Job whose pods wait in the queue; `Pipeline` objects of the API server."""
