"""The size of the house and the ways through it: `python -m tests.tools.house`."""
