"""`SyncClient.submit`: writes to be queued, for code that is not asynchronous."""

from fencepost.client.queued.submit import Submit
from fencepost.client.sync.loop import Loop
from fencepost.client.sync.submit_calls import SyncSubmitCalls


class SyncSubmit(SyncSubmitCalls):
    """Writes that are queued instead of done at once, as `Submit` has them."""

    def __init__(self, submit: Submit, loop: Loop) -> None:
        self.asynchronous = submit
        self._loop = loop
