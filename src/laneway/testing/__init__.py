"""
What tests of programs and of engines need. Nothing of Laneway itself imports this;
`laneway.testing.conformance` and `.fixtures` need pytest.

- `virtual`: an application in memory, under a clock that moves only when it is told to.
- `eager`: tasks run where they are called.
- `laneway.testing.fixtures`: both as fixtures of pytest.
- `EngineBench`: an engine under a clock that is moved by hand.
- `sleepy`: an engine that takes its time, as one at the other end of a network does.
- `laneway.testing.conformance`: what every engine has to do, as tests for those who write one.
"""

from laneway.testing.engine_driver import EngineDriver
from laneway.testing.fault_injection import sleepy
from laneway.testing.virtual import World, eager, virtual

__all__ = ["EngineDriver", "World", "eager", "sleepy", "virtual"]
