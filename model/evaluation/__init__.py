"""Comparisons of policies, and reports."""
