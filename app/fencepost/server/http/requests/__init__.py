"""What a request asks for: path, query, headers, preferences, body, each read in one place."""
