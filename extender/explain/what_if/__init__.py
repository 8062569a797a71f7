"""What if: plans on a copy of the cluster, in a process of their own."""
