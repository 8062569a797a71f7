"""Placing, binding, preempting and waking pods."""
