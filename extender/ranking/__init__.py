"""The learned rank: models as files, what is expected of the cluster, and the rank in the service."""
