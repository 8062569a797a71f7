"""Faults on a real control plane: `kerf chaos --runs N --seed S --json FILE`.

`faults` are what can go wrong, `plans` what happens in a run, and `draws` draws it from its seed. `boards` keeps the
faults that are due and counts those that took effect, `proxies` and `routers` are the hops on which they happen (Kerf
to API server, kube-scheduler to Kerf). `steps` are those that happen to objects, at their times by `schedules`,
`manifests` the objects and `attacks` what hostile authors write; `refusals` has pods that no node takes and nodes that
are not as they look. `zygotes` forks Kerf's processes, whose `clocks` can
be told what to say. `clusters` starts everything, `runs` carries a run out, `witnesses` watches it, and `checker`,
which knows nothing of Kerf's code, judges it by what the API server says of `holdings`. `workers` do that in processes
side by side, `accounts` keeps what they have shown, and `commands` is the command line.
"""
