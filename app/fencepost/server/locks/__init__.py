"""Token sources: where locks are taken and tokens come from. One sub-package for each lock service."""
