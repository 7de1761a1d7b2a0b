"""The source `etcd`."""
