"""
The picture of the README: plays the demo once and draws its last screen.

    python -m docs_tools.draw_demo docs/demo.svg
"""

from __future__ import annotations

import sys
from pathlib import Path

from laneway.demo.runner import run

if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/demo.svg")
    code = run(svg=path)
    print(f"{path}: {path.stat().st_size:,} bytes")
    sys.exit(code)
