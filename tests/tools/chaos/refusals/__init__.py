"""Pods that kube-scheduler refuses although GPUs are free for them, and nodes that look as if they had none."""
