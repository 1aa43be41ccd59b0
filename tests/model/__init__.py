"""
The model: what an engine does, in plain Python without storage.

It is docs/specification.md as a program. It implements the protocols of `laneway.engines.base`,
except for waiting, notifications and the doctor, so `tests/stateful` can run the same random
histories against it and an engine. It favors clarity: state is lists and dicts that every call
searches and sorts, without indexes or caches. Formulas (rates, virtual time, shares) and the
resolution of policies are shared with the engines; every other rule is written here a second time.

- `state`: messages, leases, lanes, tier queues and gates.
- `lanes`: which lane a message waits in, and which lanes can deliver.
- `engine`: publish, lease, settle.
- `admin`: administration and views.
"""

from tests.model.admin import Model

__all__ = ["Model"]
