"""`laneway push`: a worker that sends messages to their endpoints."""

from __future__ import annotations

import copy
import os
from typing import Any

import click

from laneway.cli.loading import load_app
from laneway.cli.worker import worker
from laneway.errors import UsageError

CONCURRENCY = 256

EXAMPLES = """\b
Examples:
  laneway push shop:app
  laneway push shop:app -c 512 --pool push --processes 2
  laneway push shop:app --allow 10.20.0.0/16 --allow hooks.intranet
"""


@click.command(short_help="Send messages to their endpoints over HTTP.", epilog=EXAMPLES)
@click.option(
    "--allow",
    multiple=True,
    metavar="NETWORK|HOST",
    help="Reach these addresses although they are not public; may be repeated.",
)
@click.option(
    "--deny",
    multiple=True,
    metavar="NETWORK|HOST",
    help="Never reach these addresses, whatever allows them; may be repeated.",
)
@click.option("--proxy", help="Send all requests through this proxy, which guards the addresses.")
@click.pass_context
def push(
    context: click.Context,
    /,
    *,
    allow: tuple[str, ...],
    deny: tuple[str, ...],
    proxy: str | None,
    **options: Any,
) -> None:
    """
    Send the messages of an application's topics to their endpoints until SIGTERM or Ctrl-C.

    It is `laneway worker` with options for sending: it runs the application's handlers, too.
    `app.push("push.*")` in the code names the topics. Give them a pool of their own, and --pool, to
    keep them apart from other work.
    """
    from laneway.push.address_guard import (
        ALLOW_VARIABLE,
        DENY_VARIABLE,
        PROXY_VARIABLE,
        Guard,
    )
    from laneway.push.handler import PushHandler
    from laneway.push.table import proxy_of

    Guard(allow, deny=deny)  # raises for a wrong entry
    # In the environment, which the processes of --processes inherit
    for variable, entries in ((ALLOW_VARIABLE, allow), (DENY_VARIABLE, deny)):
        own = os.environ.get(variable)
        if entries:
            os.environ[variable] = ",".join((*([own] if own else []), *entries))
    if proxy is not None:
        os.environ[PROXY_VARIABLE] = proxy_of(proxy)
    app = load_app(options["target"])
    if not any(isinstance(each, PushHandler) for each in app.runtime.handlers):
        raise UsageError(
            f'{options["target"]}: it pushes no topics; add app.push("push.*") to the code'
        )
    context.invoke(worker, **options)


def _option_of_worker(option: click.Parameter) -> click.Parameter:
    if option.name != "concurrency":
        return option
    option = copy.copy(option)
    option.default = CONCURRENCY
    return option


push.params = [*map(_option_of_worker, worker.params), *push.params]
