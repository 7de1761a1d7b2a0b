"""The schema fencepost itself: migrating it, its owner, and which versions work together."""
