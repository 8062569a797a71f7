"""Figures, comparisons and reports."""
