"""A Milvus server that is a dictionary, for tests of what a gallery does when one fails. pymilvus is not needed.

It can end and start again, be away, and leave vectors out of searches that it took in an earlier run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest


def nothing(_name: str) -> None:
    """What happens before a call, if a test does not say otherwise."""


class FailedCallError(Exception):
    """Takes the place of pymilvus's and of gRPC's errors."""


@dataclass
class Held:
    """A collection: its rows by number, those that searches leave out, the run that made it, and its index."""

    description: str
    run: int
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    left_out: set[int] = field(default_factory=set)
    indexed: bool = False
    loaded: bool = False


class ServerInMemory:
    """What all clients share. ``before`` is called with the name of each call, before it is answered."""

    def __init__(self) -> None:
        self.collections: dict[str, Held] = {}
        self.run = 1
        self.away = False
        self.kind = "rootcoord"  # of the part that it knows
        self.looks = 0
        self.sent: list[int] = []
        self.levels: list[str] = []  # of consistency, of the searches
        self.not_indexed = [0]  # how many vectors, at each look
        self.not_searched = [0]  # by their index
        self.late = {"state": 2, "index_name": ""}  # a part that is not searched by its index
        self.before: Callable[[str], None] = nothing

    def restart(self, leave_out: Iterable[str] = ()) -> None:
        """End and start again; from now on searches leave out the vectors of these items that were there."""
        items = set(leave_out)
        self.run += 1
        for held in self.collections.values():
            held.left_out |= {
                number for number, row in held.rows.items() if row.get("item") in items
            }

    def vectors(self) -> dict[str, set[int]]:
        """The numbers of the vectors in each collection that has any."""
        return {
            name: set(held.rows) for name, held in self.collections.items() if "_sent_" not in name
        }

    def answer(self, name: str) -> None:
        self.before(name)
        if self.away:
            raise FailedCallError("the server is away")

    def held(self, name: str) -> Held:
        if name not in self.collections:
            raise FailedCallError(f"there is no collection {name}")
        return self.collections[name]


class ClientInMemory:
    """The calls of a ``MilvusClient`` that a gallery makes."""

    server: ServerInMemory

    def __init__(self, **_: Any) -> None:
        self.server.answer("connect")

    def _get_connection(self) -> Any:
        return SimpleNamespace(_stub=SimpleNamespace(GetMetrics=self._metrics))

    def _metrics(self, _request: Any, timeout: float) -> Any:
        self.server.answer("look")
        self.server.looks += 1
        assert timeout > 0
        infos = {
            "has_error": False,
            "type": self.server.kind,
            "id": 2,
            "created_time": str(self.server.run),
        }
        response = json.dumps({"nodes_info": [{"infos": infos}]})
        return SimpleNamespace(response=response, status=SimpleNamespace(reason=""))

    def list_collections(self) -> list[str]:
        self.server.answer("list")
        return list(self.server.collections)

    def has_collection(self, name: str) -> bool:
        self.server.answer("has")
        return name in self.server.collections

    def describe_collection(self, name: str) -> dict[str, Any]:
        self.server.answer("describe")
        return {"description": self.server.held(name).description}

    def create_schema(self, description: str, **_: Any) -> Any:
        return SimpleNamespace(description=description, add_field=lambda *_, **__: None)

    def prepare_index_params(self) -> Any:
        return SimpleNamespace(add_index=lambda *_, **__: None)

    def create_collection(self, name: str, schema: Any, **_: Any) -> None:
        self.server.answer("create")
        assert name not in self.server.collections
        self.server.collections[name] = Held(schema.description, self.server.run)

    def create_index(self, name: str, *_: Any, **__: Any) -> None:
        self.server.answer("index")
        self.server.held(name).indexed = True

    def describe_index(self, name: str, _field: str) -> dict[str, Any]:
        self.server.answer("describe index")
        assert self.server.held(name).indexed
        total = len(self.server.held(name).rows)
        left = self.server.not_indexed[0]
        if len(self.server.not_indexed) > 1:
            self.server.not_indexed.pop(0)
        return {"total_rows": total, "indexed_rows": total - left, "pending_index_rows": total}

    def list_loaded_segments(self, name: str) -> list[SimpleNamespace]:
        """A small part without an index, one with an index, and one that is not searched by its index yet."""
        self.server.answer("list parts")
        assert self.server.held(name).loaded, "only a loaded collection has parts"
        total = len(self.server.held(name).rows)
        left = self.server.not_searched[0]
        if len(self.server.not_searched) > 1:
            self.server.not_searched.pop(0)
        small = SimpleNamespace(segment_id=1, num_rows=5, state=3, index_name="")
        large = SimpleNamespace(segment_id=2, num_rows=total - left - 5, state=3, index_name="i")
        late = SimpleNamespace(segment_id=3, num_rows=left, **self.server.late)
        return [small, small, large, late]  # one of them has a replica

    def flush(self, name: str) -> None:
        self.server.answer("flush")
        self.server.held(name)

    def load_collection(self, name: str, **_: Any) -> None:
        self.server.answer("load")
        held = self.server.held(name)
        if not held.indexed:
            raise FailedCallError("there is no index")
        held.loaded = True

    def drop_collection(self, name: str) -> None:
        self.server.answer("drop")
        self.server.collections.pop(name, None)

    def upsert(self, name: str, rows: list[dict[str, Any]]) -> None:
        self.server.answer("upsert")
        held = self.server.held(name)
        held.rows.update({row["number"]: row for row in rows})
        self.server.sent += [row["number"] for row in rows if "item" in row]

    def delete(self, name: str, ids: list[int]) -> None:
        self.server.answer("delete")
        held = self.server.held(name)
        for number in ids:
            held.rows.pop(number, None)

    def query(self, name: str, **_: Any) -> list[dict[str, Any]]:
        self.server.answer("query")
        return list(self.server.held(name).rows.values())

    def search(
        self, name: str, data: list[Any], limit: int, consistency_level: str, **_: Any
    ) -> list[list[dict[str, Any]]]:
        self.server.answer("search")
        self.server.levels.append(consistency_level)
        held = self.server.held(name)
        rows = [row for number, row in held.rows.items() if number not in held.left_out]
        answers = []
        for query in data:
            scores = [float(np.dot(row["vector"], query)) for row in rows]
            best = sorted(zip(scores, rows, strict=True), key=lambda pair: -pair[0])[:limit]
            answers.append(
                [
                    {"id": row["number"], "distance": score, "entity": {"item": row["item"]}}
                    for score, row in best
                ]
            )
        return answers

    def close(self) -> None:
        pass


def server_in_memory(monkeypatch: pytest.MonkeyPatch) -> ServerInMemory:
    """A server that every gallery of a test reaches, whatever its address says."""
    server = ServerInMemory()
    client = type("OwnClientInMemory", (ClientInMemory,), {"server": server})
    modules: dict[str, dict[str, Any]] = {
        "pymilvus": {
            "MilvusClient": client,
            "MilvusException": FailedCallError,
            "DataType": _Names(),
        },
        "pymilvus.decorators": {"retry_on_rpc_failure": lambda: lambda call: call},
        "pymilvus.grpc_gen": {"milvus_pb2": SimpleNamespace(GetMetricsRequest=SimpleNamespace)},
        "grpc": {"RpcError": FailedCallError, "FutureTimeoutError": FailedCallError},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return server


class _Names:
    """Whatever name is asked for."""

    def __getattr__(self, name: str) -> str:
        return name
