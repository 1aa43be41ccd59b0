"""`app.run_worker`: one worker in this process, or a supervisor of several, or one that begins anew when the code changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fairlead.working.worker import Worker

if TYPE_CHECKING:
    from fairlead.app import Fairlead
    from fairlead.working.options import Options, Summary


def run_worker(app: Fairlead, options: Options) -> Summary:
    """Handle messages until told to stop."""
    if options.processes > 1 or options.reload:
        from fairlead.working.supervisor import Supervisor, address_of  # noqa: PLC0415  # most workers need no supervisor

        return Supervisor(address_of(app), options).run()
    return Worker(app.engine, app.handlers, options).run()
