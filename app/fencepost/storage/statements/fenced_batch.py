"""To be replaced: what the gateway still calls by these names."""

from functools import partial

from fencepost.storage.statements import keyed
from fencepost.storage.statements.asking import ask
from fencepost.storage.statements.keyed import Batch
from fencepost.storage.statements.keyed import WriteStatement as Statement
from fencepost.storage.statements.parameters import RowWrite

__all__ = ["Batch", "RowWrite", "Statement", "ask"]

update = partial(keyed.update, wait="skip")
delete = partial(keyed.delete, wait="skip")
insert = partial(keyed.insert, wait="skip")
create = partial(keyed.create, wait="skip")
