"""What all tests share."""

import os

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
if "HYPOTHESIS_PROFILE" not in os.environ:
    settings.load_profile("fixed")  # the same examples in each run; `default` draws others
