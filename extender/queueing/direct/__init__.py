"""Planned without an extender: what stands in for filter and bind where kube-scheduler calls nobody.

A pod's GPUs are written on it together with its nomination, before its gate is opened; kube-scheduler binds it by
itself. So what is written counts from the write on: it is held until the pod has a node, or until it was taken back.
Each write carries the pod's resourceVersion, so that one that comes late, a dead leader's too, changes nothing that was
decided since.
"""
