"""The pending side: which pods go next, and where a batch of them goes together.

Plans, planners, orders, quotas and estimates are pure: they import `extender.core` and NumPy alone, and are given time
and randomness.
"""
