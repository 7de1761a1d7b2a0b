"""A SHIM, no Kubernetes: the part of the Lease API that the source asks, in some lines over SQLite.

    python -m tests.kube.shim PORT FILE

For machines without a kube-apiserver. It repeats what the real one was seen to do: 409 for another resourceVersion or
uid, a PUT that creates, an update that changes nothing and draws no resourceVersion. What it gets wrong, only a run on
the real one shows: permissions, versions, validation and timing are none of its business.
"""

import asyncio
import json
import sqlite3
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

_SCHEMA = """
CREATE TABLE IF NOT EXISTS leases (name TEXT PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counter (revision INTEGER NOT NULL);
INSERT INTO counter SELECT 100 WHERE NOT EXISTS (SELECT 1 FROM counter);
"""

Lease = dict[str, Any]


class Shim:
    """The Leases of one namespace, in a file that outlives the process."""

    def __init__(self, file: str) -> None:
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.executescript(_SCHEMA)
        self._change = asyncio.Condition()

    def _read(self, name: str) -> Lease | None:
        row = self._database.execute("SELECT body FROM leases WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def _revision(self) -> int:
        return int(self._database.execute("SELECT revision FROM counter").fetchone()[0])

    async def _write(self, lease: Lease) -> Lease:
        self._database.execute("BEGIN IMMEDIATE")
        revision = self._revision() + 1
        lease["metadata"]["resourceVersion"] = str(revision)
        self._database.execute("UPDATE counter SET revision = ?", (revision,))
        self._database.execute("REPLACE INTO leases VALUES (?, ?)", (lease["metadata"]["name"], json.dumps(lease)))
        self._database.execute("COMMIT")
        async with self._change:
            self._change.notify_all()
        return lease

    async def get(self, request: Request) -> Response:
        found = self._read(request.path_params["name"])
        return _refused(404, "not found") if found is None else JSONResponse(found)

    async def post(self, request: Request) -> Response:
        lease = await request.json()
        if self._read(lease["metadata"]["name"]) is not None:
            return _refused(409, "already exists")
        lease["metadata"]["uid"] = str(uuid.uuid4())
        return JSONResponse(await self._write(lease), 201)

    async def put(self, request: Request) -> Response:
        lease = await request.json()
        metadata, found = lease["metadata"], self._read(request.path_params["name"])
        if found is None:
            if "uid" in metadata:
                return _refused(409, "another uid")
            return JSONResponse(await self._write({**lease, "metadata": {**metadata, "uid": str(uuid.uuid4())}}), 201)
        if any(
            metadata.get(key, found["metadata"][key]) != found["metadata"][key] for key in ("uid", "resourceVersion")
        ):
            return _refused(409, "the object has been modified")
        return JSONResponse(found if lease == found else await self._write(lease))

    async def list(self, request: Request) -> Response:
        query = request.query_params
        if query.get("watch"):
            return StreamingResponse(self._watched(query), media_type="application/json")
        return JSONResponse({"metadata": {"resourceVersion": str(self._revision())}, "items": []})

    async def _watched(self, query: Any) -> AsyncIterator[str]:
        name, seen = query["fieldSelector"].removeprefix("metadata.name="), query["resourceVersion"]

        def differs() -> bool:
            found = self._read(name)
            return found is None or found["metadata"]["resourceVersion"] != seen

        async with self._change:
            try:
                await asyncio.wait_for(self._change.wait_for(differs), int(query["timeoutSeconds"]))
            except TimeoutError:
                return
        found = self._read(name)
        yield json.dumps({"type": "MODIFIED" if found else "DELETED", "object": found}) + "\n"


def _refused(status: int, why: str) -> Response:
    return JSONResponse({"kind": "Status", "code": status, "message": f"the shim says: {why}"}, status)


async def _ready(_: Request) -> Response:
    return Response("ok")


async def _version(_: Request) -> Response:
    return JSONResponse({"major": "1", "minor": "35", "gitVersion": "shim"})


async def _allowed(request: Request) -> Response:
    return JSONResponse({**await request.json(), "status": {"allowed": True}}, 201)


def app(file: str) -> Starlette:
    """Make the shim on a file."""
    shim, leases = Shim(file), "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    return Starlette(
        routes=[
            Route("/readyz", _ready),
            Route("/version", _version),
            Route("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", _allowed, methods=["POST"]),
            Route(leases, shim.list, methods=["GET"]),
            Route(leases, shim.post, methods=["POST"]),
            Route(f"{leases}/{{name}}", shim.get, methods=["GET"]),
            Route(f"{leases}/{{name}}", shim.put, methods=["PUT"]),
        ]
    )


async def _serve(port: int, file: str) -> None:
    await uvicorn.Server(uvicorn.Config(app(file), port=port, log_level="warning")).serve()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), sys.argv[2]))
