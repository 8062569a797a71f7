"""Benchmarks on a real control plane, `kerf bench`; `make bench` runs all of them.

`commands` is the command line; it says what each module measures. `servers` starts what is measured, `reports` makes
tables of the figures and writes them, `consoles` shows both.
"""
