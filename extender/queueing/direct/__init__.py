"""Direct mode: planning without an extender, where kube-scheduler calls neither filter nor bind.

A pod's assignment is written on it together with its nomination, before its gate is opened, and kube-scheduler binds it
by itself. The assignment counts from the write on: its GPUs are held until the pod has a node or the assignment is
withdrawn. Each write carries the pod's resourceVersion, so that a late one, even of a dead leader, overwrites no later
decision.
"""
