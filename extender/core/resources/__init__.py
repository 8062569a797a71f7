"""GPU models, node offers and pod requests, independent of any cluster."""
