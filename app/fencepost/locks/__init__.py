"""Token sources: where locks are taken and tokens come from. One file each."""
