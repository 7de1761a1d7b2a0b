"""The protocol as a formal model in Promela, checked by SPIN. docs/model.md says what is in it; `model/run` runs it."""
