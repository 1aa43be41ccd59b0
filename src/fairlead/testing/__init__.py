"""
What tests of programs and of engines need. Nothing of Fairlead itself imports this; `fairlead.testing.conformance` needs pytest.

- `EngineBench`: an engine under a clock that is moved by hand.
- `fairlead.testing.conformance`: what every engine has to do, as tests for those who write one.
"""

from fairlead.testing.bench import EngineBench

__all__ = ["EngineBench"]
