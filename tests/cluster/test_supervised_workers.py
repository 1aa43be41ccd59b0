"""Elections in the processes of `laneway worker --processes 2`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from laneway import Laneway
from laneway.testing.servers import until

PROGRAM = """
from laneway import Laneway

app = Laneway("sqlite:///q.db")

@app.handler("t")
def handle(message):
    pass

class Career:
    def inaugurate(self):
        pass

    def execute(self, term):
        term.ending.wait(60)

    def hand_over(self):
        print("handed over", flush=True)

app.election("one", Career, in_workers=True)
"""


def test_workers_are_candidates(tmp_path: Path) -> None:
    """One of the processes holds the term; another follows it; the last hands over at the end."""
    (tmp_path / "program.py").write_text(PROGRAM)
    workers = subprocess.Popen(
        [sys.executable, "-m", "laneway", "worker", "program:app", "--processes", "2"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        with Laneway(f"sqlite:///{tmp_path}/q.db") as app:
            election = app.election("one")
            until(lambda: election.state().state == "held", "a holder", 60)
            first = election.state()

            def other_holds() -> bool:
                """The first one is asked again where the other began late and missed its turn."""
                state = election.state()
                if state.holder == first.holder and state.state == "held":
                    election.step_down()
                return state.holder not in (None, first.holder)

            until(other_holds, "the other", 60)
            workers.send_signal(signal.SIGTERM)
            output, _ = workers.communicate(timeout=60)
            assert workers.returncode == 0, output
            assert output.count("handed over") >= 2
            assert election.state().handed_over
    finally:
        workers.kill()
        workers.communicate()
