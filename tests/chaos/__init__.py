"""Faults on a real control plane: `kerf chaos --runs N --seed S --json FILE`.

`plans` draws what happens in a run from its seed, `boards` keeps the faults that are due and counts those that took
effect, `proxies` and `routers` are the hops on which they happen (Kerf to API server, kube-scheduler to Kerf),
`clusters` starts everything, `runs` carries a run out, and `checker`, which knows nothing of Kerf's code, judges it by
what the API server says. `commands` is the command line, `reports` what it prints and writes.
"""
