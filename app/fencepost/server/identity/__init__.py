"""Who sends a request: the authenticator, and the verifiers that it asks."""
