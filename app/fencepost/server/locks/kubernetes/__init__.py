"""The source `kubernetes`: Leases of coordination.k8s.io/v1."""
