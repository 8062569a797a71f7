"""The learned rank: model files, the expected demand, and the rank in the service."""
