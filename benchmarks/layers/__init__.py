"""What gets through when the lock, the queue or the fence is off: the measurement behind docs/combining.md."""
