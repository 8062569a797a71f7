"""Compiled twins of the core's rules, for simulations."""
