"""The client for code that is not asynchronous."""
