"""The log `redis`: one Redis stream per partition, all in one slot of a Redis Cluster."""
