"""`python -m laneway.compat.rq`: a worker, as `rq worker`."""

import sys

from laneway.compat.rq import main

if __name__ == "__main__":
    sys.exit(main())
