"""Benchmarks on a real control plane: `kerf bench scheduler|calls|start|all`, which `make bench` runs.

`commands` is the command line, `schedulers`, `calls` and `starts` measure, `servers` starts what is measured,
`reports` prints and writes it.
"""
