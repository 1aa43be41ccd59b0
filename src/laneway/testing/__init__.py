"""
Tools for testing programs and engines. No other part of Laneway imports this package.

- `virtual`: run an application in memory, with a clock that moves only when the test moves it.
- `eager`: run tasks in the caller.
- `simulated`: simulate a fleet of workers with an application's policies (`simulation`).
- `laneway.testing.fixtures`: both as pytest fixtures.
- `EngineDriver`: an engine with a clock that the test moves.
- `with_latency`: an engine with the latency of a network.
- `laneway.testing.servers`: Valkey servers for tests.
- `laneway.testing.conformance`: the test suite for engines.

`laneway.testing.conformance` and `laneway.testing.fixtures` need pytest.
"""

from laneway.testing.engine_driver import EngineDriver
from laneway.testing.fault_injection import with_latency
from laneway.testing.simulation import simulated
from laneway.testing.virtual import World, eager, virtual

__all__ = ["EngineDriver", "World", "eager", "simulated", "virtual", "with_latency"]
