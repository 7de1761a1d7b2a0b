"""The second reading of a history: picks the operations that are drawn, and counts all of them into the overview."""

from fencepost.testing.history import End, History, Invoke
from fencepost.testing.torture.report.choice import Choice
from fencepost.testing.torture.report.excerpt import Excerpt, Picker
from fencepost.testing.torture.report.operation import Operation
from fencepost.testing.torture.report.overview import Overview
from fencepost.testing.torture.report.survey import Survey


def look(history: History, survey: Survey, choice: Choice) -> tuple[list[Excerpt], Overview]:
    """Read the history once more."""
    overview = Overview(survey, choice)
    pickers = {drawn.subject: Picker(drawn) for drawn in choice.drawn}
    opened: dict[int, Operation] = {}
    for event in history:
        if isinstance(event, Invoke):
            operation = opened[event.id] = Operation(event)
            if (picker := pickers.get(survey.subject(event.resource))) is not None:
                picker.take(operation)
        elif isinstance(event, End):
            operation = opened.pop(event.id)
            operation.end = event
            overview.count(survey.subject(operation.begin.resource), event.event, event.time)
    for operation in opened.values():
        overview.count(survey.subject(operation.begin.resource), "unknown", operation.invoked)
    return [picker.finish() for picker in pickers.values()], overview
