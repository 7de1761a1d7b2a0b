"""The source `zookeeper`."""
