"""How long three services take to see a deployment, and to take over the job of one that was killed.

    PYTHONPATH=src:tests/support:tests/service python tests/service/shared_costs.py

The first search of each service after a deployment also loads the model; the time until that answer is told too.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from postgres_server import fresh_url
from replicas import Service, balanced, replicas
from service_clients import picture
from shops import passed, shop
from test_shared import until

from fixstar.service.jobs import JobFiles
from fixstar.workspace import Workspace


def main() -> None:
    """Measure, and print."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shop"
        Workspace.create(path, fresh_url()).close()
        with shop(path) as space, replicas(space) as services:
            passed(space, "v2", "v1")
            print(f"a deployment is seen by all three: {deployments(services)}")
            print(f"a killed service's job is taken over after: {takeover(space, services):.1f} s")


def deployments(services: list[Service], times: int = 10) -> str:
    """From the answer to a deployment until all services tell the new version; then until all have searched with it."""
    told, searched = list[float](), list[float]()

    def tell(service: Service) -> str:
        return str(service.http.get("/v1/status").json()["deployed"])

    def search(service: Service) -> str:
        return str(service.http.post("/v1/search", files={"image": picture(1)}).json()["version"])

    with ThreadPoolExecutor(len(services)) as pool:
        assert set(pool.map(tell, services)) == set(pool.map(search, services)) == {"v1"}
        for number in range(times):
            version, path = ("v1", "/v1/rollback") if number % 2 else ("v2", "/v1/deploy")
            services[0].http.post(
                path, json={} if number % 2 else {"version": version}
            ).raise_for_status()
            for ask, seconds in ((tell, told), (search, searched)):
                began = time.monotonic()
                while set(pool.map(ask, services)) != {version}:
                    continue
                seconds.append(time.monotonic() - began)
    return ", ".join(
        f"{name} {1000 * statistics.median(values):.0f} ms (median of {times}), {1000 * max(values):.0f} ms at most"
        for name, values in (("status", told), ("search", searched))
    )


def takeover(space: Workspace, services: list[Service]) -> float:
    """From kill -9 until another service has the job."""
    files = [("images", (f"{number}.png", picture(number, (8, 8)))) for number in range(640)]
    with balanced(services) as http:
        ids = json.dumps([str(number) for number in range(640)])
        name = http.post("/v1/items/async", files=files, data={"ids": ids}).json()["id"]
        until(lambda: http.get(f"/v1/jobs/{name}").json()["done"], bool)
        left = next(job for job in JobFiles(space.path).load() if job.id == name)
        next(one for one in services if f"-{one.process.pid}-" in left.runner).kill()
        began = time.monotonic()
        until(
            lambda: next(job.runner for job in JobFiles(space.path).load() if job.id == name),
            left.runner.__ne__,
        )
        return time.monotonic() - began


if __name__ == "__main__":
    main()
