"""The HTTP face: routes, parsing, problem bodies, OpenAPI from the catalog."""
