"""Binding a pod, and what becomes of it when the answer is lost."""
