"""The rules: tokens, resources, verdicts and problems. Standard library only, no I/O."""
