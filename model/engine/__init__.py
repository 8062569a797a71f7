"""Compiled equivalents of the core's rules, for simulations."""
