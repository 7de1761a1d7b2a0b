"""A package, so that its servers end when the tests of this directory have run."""
