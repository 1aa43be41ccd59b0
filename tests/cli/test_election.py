"""`laneway election`."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from laneway import Laneway, Term
from tests.cli.conftest import Command


class Career:
    begun = threading.Event()

    def inaugurate(self) -> None: ...

    def execute(self, term: Term) -> None:
        self.begun.set()
        term.ending.wait(30)

    def hand_over(self) -> None: ...


@pytest.fixture
def laneway(tmp_path: Path) -> Command:
    return Command(f"sqlite:///{tmp_path}/laneway.db")


def test_holder_and_step_down(laneway: Command, tmp_path: Path) -> None:
    """A holder is listed, shown, asked, and followed."""
    with Laneway(laneway.url) as app:
        app.publish("t", 1)
        assert laneway("election", "list").output == "there are no elections\n"
        assert 'there is no election "index"' in laneway("election", "show", "index", code=1).output
        election = app.election("index", Career)
        thread = threading.Thread(target=election.run, kwargs={"terms": 1})
        thread.start()
        assert Career.begun.wait(30)
        (listed,) = laneway.json("election", "list")
        assert (listed["name"], listed["state"]) == ("index", "held")
        shown = laneway("election", "show", "index").output
        assert f"held: {listed['holder']} holds term {listed['number']} since 20" in shown
        assert "unless its holder renews it" in shown
        assert laneway.json("election", "show", "index")["candidate"] == listed["candidate"]
        asked = laneway("election", "step-down", "index", "--wait", "30s").output
        assert f"{listed['holder']} has stepped down from index" in asked
        thread.join(30)
        refused = laneway("election", "step-down", "index", code=1).output
        assert "election index: nobody holds it now" in refused
        assert "the last term was" in laneway("election", "show", "index").output


def test_wrong_calls(laneway: Command) -> None:
    """Errors are one line with the value and what was expected."""
    with Laneway(laneway.url) as app:
        app.publish("t", 1)
    for arguments, text in (
        (("step-down", "x", "--wait", "soon"), "got 'soon'"),
        (("show", "x" * 300), "at most 200 characters, got 300"),
        (("list", "--zookeeper", "a b"), "got 'a b'"),
    ):
        output = laneway("election", *arguments, code=2).output
        assert text in output
        assert output.count("\n") == 1
