"""Leader election: campaigning, and observing who leads."""
