"""What the database knows of those who call the gateway."""
