"""Token sources: where locks are taken and tokens come from. A file or two for each lock service."""
