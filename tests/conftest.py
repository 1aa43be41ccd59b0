"""What all tests share."""

from __future__ import annotations

import os
import sys

from hypothesis import settings

# Images for containers often forbid bytecode. The tests start over a thousand programs, and each
# would compile Laneway again: 0.2 s of CPU for `import laneway`, more for a worker or a gateway.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

settings.register_profile("fixed", derandomize=True, deadline=None)
if "HYPOTHESIS_PROFILE" not in os.environ:
    settings.load_profile("fixed")  # the same examples in each run; `default` draws others
