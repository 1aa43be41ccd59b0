"""A namespace of several schemas: how it is created and opened, and what its processes share."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from laneway.engines import open_engine
from laneway.engines.base import FullEngine, Settings
from laneway.engines.postgres.schemas import SchemasEngine
from laneway.errors import EngineCorrupt, EngineUnavailable, LanewayError, UsageError
from laneway.message import Draft, Settlement
from laneway.testing.servers import until
from tests.conformance.postgres_setups import server

Opened = Callable[..., FullEngine]


@pytest.fixture
def namespace() -> str:
    return f"Schemas-{secrets.token_hex(6)}"


@pytest.fixture
def opened(namespace: str) -> Iterator[Opened]:
    """Opens the namespace, several times if need be, and closes it."""
    engines: list[FullEngine] = []
    url = server().url

    def open_(options: str = "?shards=4", **others: object) -> FullEngine:
        settings: dict[str, object] = {"namespace": namespace, "durability": "memory"} | others
        engine = open_engine(url + options, Settings(**settings))  # type: ignore[arg-type]
        engines.append(engine)
        return engine

    yield open_
    for engine in engines:
        engine.close()


def refusal(opened: Opened, options: str = "?shards=4", **settings: object) -> LanewayError:
    with pytest.raises(LanewayError) as caught:
        opened(options, **settings)
    return caught.value


def some(count: int, topics: int = 40) -> list[Draft]:
    return [Draft(f"t.{n % topics}", b"%d" % n) for n in range(count)]


def drain(engine: FullEngine) -> int:
    count = 0
    while leases := engine.lease(500).leases:
        engine.settle([Settlement(lease.handle, lease.fence, "ack") for lease in leases])
        count += len(leases)
    return count


def schemas(namespace: str) -> list[str]:
    name = f"laneway_{namespace}%"
    rows = server().execute(f"SELECT nspname FROM pg_namespace WHERE nspname LIKE '{name}'")
    return sorted(row[0] for row in rows)


def test_the_number_of_schemas_is_fixed_and_found_again(opened: Opened, namespace: str) -> None:
    opened().put(some(50))
    first = f"laneway_{namespace}"
    assert schemas(namespace) == [first, *(f"{first}.{n}" for n in range(1, 4))]
    again = opened("")
    assert again.capabilities.shards == 4
    assert drain(again) == 50
    for other in (1, 8):
        error = refusal(opened, f"?shards={other}")
        assert isinstance(error, UsageError)
        assert f"was created with 4 schemas, the URL asks for {other}" in str(error)


@pytest.mark.parametrize("options", ["", "?shards=1"])
def test_a_namespace_of_one_schema_stays_one(opened: Opened, namespace: str, options: str) -> None:
    assert opened(options).capabilities.shards == 1
    assert "was created with 1 schema, the URL asks for 4" in str(refusal(opened))
    assert schemas(namespace) == [f"laneway_{namespace}"]
    assert opened("").capabilities.transactions


def test_namespaces_that_must_exist_are_not_created(opened: Opened, namespace: str) -> None:
    for options in ("", "?shards=4"):
        assert isinstance(refusal(opened, options, create=False), EngineUnavailable)
    assert schemas(namespace) == []


@pytest.mark.parametrize("options", ["", "?shards=4"])
@pytest.mark.parametrize("shard", ["", ".3"])
def test_a_missing_schema_is_not_created_again(
    opened: Opened, namespace: str, options: str, shard: str
) -> None:
    """The first one, which has the number of schemas, and another one."""
    opened().close()
    name = f"laneway_{namespace}{shard}"
    server().execute(f'DROP SCHEMA "{name}" CASCADE')
    error = refusal(opened, options)
    assert isinstance(error, EngineUnavailable)
    assert re.search(rf"{name}: this schema (of namespace {namespace} )?is missing", str(error))
    assert len(schemas(namespace)) == 3


def test_whether_a_schema_is_free_costs_no_trip_where_nobody_waits(opened: Opened) -> None:
    """A worker asks each schema before it leases, and the server only after a wait."""
    ours, theirs = opened(), opened()
    store, other = (each._space.stores[1]._store for each in (ours, theirs))  # type: ignore[attr-defined]
    store._quickest = -1.0  # the machine is slow: each trip takes a second longer than that
    with store.writing(durable=False) as connection:
        pass
    trips = connection.pipeline.trips
    assert not store.is_busy()
    assert connection.pipeline.trips == trips
    with ThreadPoolExecutor() as pool:
        with other.writing(durable=False) as holder:

            def wait() -> None:
                with store.writing(durable=False):
                    pass

            waits = pool.submit(wait)
            waiting = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            until(lambda: server().execute(waiting), "the other process waits")
            holder.pipeline.send("SELECT pg_sleep(0.01)")
            holder.pipeline.sync()
        waits.result()
    with other.writing(durable=False) as holder:
        holder.one("turn_read")
        assert store.is_busy()
    assert not store.is_busy()


def test_a_schema_in_the_place_of_another_is_refused(opened: Opened, namespace: str) -> None:
    opened().close()
    for old, new in ((2, "away"), (1, "2"), ("away", "1")):
        server().execute(
            f'ALTER SCHEMA "laneway_{namespace}.{old}" RENAME TO "laneway_{namespace}.{new}"'
        )
    error = refusal(opened)
    assert isinstance(error, EngineCorrupt)
    assert "expected schema 1 of 4 of this namespace, found schema 2 of 4" in str(error)


def test_processes_may_create_the_schemas_concurrently(opened: Opened) -> None:
    with ThreadPoolExecutor(4) as threads:
        engines = [each.result() for each in [threads.submit(opened) for _ in range(4)]]
    for engine in engines:
        engine.put(some(25))
    assert drain(engines[0]) == 100


def test_the_doctor_names_the_schema(opened: Opened, namespace: str) -> None:
    engine = opened()
    engine.put(some(50))
    assert all(check.ok for check in engine.doctor())
    server().execute(f'UPDATE "laneway_{namespace}.2".shard SET waiting = waiting + 1')
    (check,) = (check for check in opened().doctor() if not check.ok)
    assert check.name == "totals"
    assert check.detail.startswith("schema 2: ")
    assert all(check.ok for check in engine.doctor(repair=True) if check.name != "totals")
    assert all(check.ok for check in engine.doctor())


def test_one_connection_listens_for_all_schemas(opened: Opened, namespace: str) -> None:
    """A worker of another process is woken by a message of any shard."""
    ours, theirs = opened(), opened()
    assert isinstance(theirs, SchemasEngine)
    woken: list[object] = []
    for n in range(8):
        listener = theirs.work_listener()
        waits = threading.Thread(target=lambda: woken.append(listener.poll(20)))  # noqa: B023
        waits.start()
        ours.put([Draft(f"topic {n}", b"x")])
        waits.join()
        listener.close()
        assert drain(theirs) == 1
    assert woken == [True] * 8
