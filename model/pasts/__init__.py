"""Replays of a cluster's history under other policies, compared with what happened."""
