"""Nodes on which pods of several namespaces fail soon after their start: set aside, with a reason and a way back."""
