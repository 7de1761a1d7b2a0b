"""What a run plays on: servers that it starts, or a gateway that runs already; and the tables that it makes there."""
