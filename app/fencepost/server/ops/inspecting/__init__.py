"""What `fencepost status` and `fencepost doctor` read from the database, one subject a file."""
