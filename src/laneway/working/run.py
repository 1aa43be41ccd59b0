"""
`app.run_worker`: one worker in this process, or a supervisor of several processes, which also
restarts a worker when the code changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from laneway.errors import UsageError
from laneway.printable import redacted
from laneway.working.banner import log_banner
from laneway.working.election_threads import ElectionThreads
from laneway.working.embedded_worker import refuse_running_loop
from laneway.working.options import Options, Summary
from laneway.working.user_imports import refuse_while_importing
from laneway.working.worker import Worker, check_handlers

if TYPE_CHECKING:
    from laneway.working.host import ProcessApplication


def run_worker(app: ProcessApplication, options: Options) -> Summary:
    """
    Handle messages until stopped. Returns what was handled.

    Raises UsageError if the application has neither handlers nor elections, or cannot run in
    several processes.
    """
    refuse_while_importing("run_worker")
    refuse_running_loop("run_worker")
    elections = ElectionThreads(app.elections_in_workers, options)
    check_handlers(app.handlers, elections)
    app.schedules.install()
    log_banner(
        app,
        options,
        f"stop with Ctrl-C or SIGTERM; running handlers may continue for {options.grace:g} s",
    )
    if options.processes > 1 or options.reload:
        from laneway.working.supervisor import (  # noqa: PLC0415
            Supervisor,
            target_of,
        )  # most workers need no supervisor

        if not app.engine.capabilities.processes:  # checked here, so that the error appears once
            raise UsageError(
                f"run_worker: {redacted(app.url)} exists in this process only; several processes,"
                " and reload, need a shared store"
            )
        return Supervisor(
            target_of(app, options), msgspec.structs.replace(options, store=app.store_options)
        ).run()
    worker = Worker(app.engine, app.handlers, options, elections.stop)
    with app.workers.running(worker), elections:
        return worker.run(ready=elections.start)
