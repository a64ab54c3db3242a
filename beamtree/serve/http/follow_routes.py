"""The route by which other services follow the changes of this one."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from beamtree.errors import short_message
from beamtree.live.following import POSITION, ROUTE, START, FolderChanges
from beamtree.serve.http.errors import SCHEMA_HINT, ApiError, read_only_error
from beamtree.serve.http.service import Service

LOOK_SECONDS = 0.02  # between two looks at whether there is a change
MOST_SECONDS = 30.0  # to wait
After = Annotated[str, Query(max_length=200, description="The header of the last answer; without it, from the start.")]
Wait = Annotated[float, Query(ge=0, le=MOST_SECONDS, description="Seconds to wait for changes if there are none.")]


def follow_routes(service: Service) -> APIRouter:
    """Changes as they are stored."""
    router = APIRouter()
    journal = service.journal
    changes = None if journal is None else FolderChanges(journal.path.parent)

    @router.get(ROUTE, response_class=Response)
    async def get_changes(position: After = START, wait: Wait = 0.0) -> Response:
        """What follows a position in the changes: lines of a checksum and JSON. Needs the token for changes."""
        service.check_writer("follow")
        if changes is None or journal is None:
            raise read_only_error()
        end = asyncio.get_running_loop().time() + wait
        while True:
            size = journal.size
            try:  # some KiB of a file that was just written: no thread is needed
                lines = changes.read(position)
            except ValueError as error:
                raise ApiError(422, f"position: {error}", SCHEMA_HINT) from error
            except OSError as error:
                hint = "look at the disk of the writer"
                raise ApiError(503, f"the changes cannot be read: {short_message(error)}", hint) from error
            if lines.position is None:
                raise ApiError(410, "position: these changes were replaced", "read from the start, without a position")
            while not lines.content and journal.size == size and asyncio.get_running_loop().time() < end:
                if service.stopping:
                    break
                await asyncio.sleep(LOOK_SECONDS)
            if lines.content or journal.size == size:
                return Response(lines.content, media_type="text/plain", headers={POSITION: lines.position})

    return router
