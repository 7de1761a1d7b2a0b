"""What `fencepost doctor` looks at beside the database: lock services, queues, the keys of seals."""
