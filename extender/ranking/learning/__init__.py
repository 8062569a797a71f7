"""From a model that was fitted to the cluster's own history to one that serves: by evidence, and back again."""
