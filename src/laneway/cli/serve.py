"""`laneway serve`: the HTTP API."""

from __future__ import annotations

import logging

import click

from laneway import Laneway
from laneway.cli.loading import load_app
from laneway.cli.session import Session, pass_session, say

EXAMPLES = """\b
Examples:
  laneway serve                            the store at http://127.0.0.1:7878
  laneway serve shop:app --bind :8000      with the application's middlewares
  laneway serve --no-login                 then: curl localhost:7878/v1/topics
"""


@click.command(short_help="Serve the HTTP API.", epilog=EXAMPLES)
@click.argument("target", metavar="[MODULE[:APP]]", required=False)
@click.option(
    "-b",
    "--bind",
    default="127.0.0.1:7878",
    show_default=True,
    help="The address, HOST:PORT; port 0 picks a free one.",
)
@click.option(
    "--insecure",
    is_flag=True,
    help="Let every client do everything without a token, even from other machines.",
)
@click.option(
    "--no-login",
    is_flag=True,
    help="Until a token exists, accept all users of this machine without a login.",
)
@click.option("--root-path", default="", help="The prefix under which a proxy serves the API.")
@click.option(
    "--trusted-proxy",
    multiple=True,
    metavar="ADDRESS",
    help="Trust X-Forwarded-… headers from this address or network; may be repeated.",
)
@click.option(
    "--tls-certificate",
    type=click.Path(dir_okay=False),
    help="Serve HTTPS with the certificate in this PEM file.",
)
@click.option(
    "--tls-key",
    type=click.Path(dir_okay=False),
    help="The PEM file with the certificate's private key.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False),
    help="Accept the token in this file for everything; create both if the file is missing.",
)
@click.option(
    "--cors-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages from this origin send requests with a token; may be repeated.",
)
@click.option(
    "--embed-origin",
    multiple=True,
    metavar="ORIGIN",
    help="Let pages from this origin show the dashboard in a frame; may be repeated.",
)
@click.option(
    "--namespace-link",
    multiple=True,
    metavar="NAME=URL",
    help="A link to the dashboard of another namespace, for the menu; may be repeated.",
)
@click.option("--max-connections", type=click.IntRange(1, 100_000), default=1000, show_default=True)
@pass_session
def serve(
    session: Session,
    target: str | None,
    *,
    bind: str,
    insecure: bool,
    no_login: bool,
    root_path: str,
    trusted_proxy: tuple[str, ...],
    tls_certificate: str | None,
    tls_key: str | None,
    token_file: str | None,
    cors_origin: tuple[str, ...],
    embed_origin: tuple[str, ...],
    namespace_link: tuple[str, ...],
    max_connections: int,
) -> None:
    """
    Serve the HTTP API of the store, or of an application, until SIGTERM or Ctrl-C.

    Clients send a token (`laneway token create`). Until there is one, it answers this machine
    only, and the URL that it shows logs one browser in, once. /docs lists the requests.
    """
    from laneway.gateway import cors, server
    from laneway.gateway.dashboard.dashboard import Dashboard
    from laneway.gateway.dashboard.local_login_pages import LocalLoginPages
    from laneway.gateway.dashboard.view import check_link
    from laneway.gateway.gateway import Gateway
    from laneway.gateway.login import token_file as token_files
    from laneway.gateway.login.local_login import LocalLogin
    from laneway.gateway.login.sessions import KEY
    from laneway.gateway.login.shared_key import shared_key

    host, port = server.bind_of(bind)
    options = server.Options(
        host=host,
        port=port,
        certificate=tls_certificate,
        key=tls_key,
        max_connections=max_connections,
        trusted_proxies=trusted_proxy,
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    origins = [cors.check_origin(origin) for origin in cors_origin]
    embedding = [cors.check_origin(origin, "--embed-origin") for origin in embed_origin]
    links = [check_link(link) for link in namespace_link]
    with _app(session, target) as app:
        if token_file is not None:
            token_files.ensure(app.engine, token_file)
        has_tokens = bool(app.engine.records("token", limit=1))
        server.check_bind(host, is_open=insecure or has_tokens)
        login = None
        if not insecure and not no_login:
            key = shared_key(app.engine, KEY)
            login = LocalLogin(key, None if has_tokens else "serve")
        pages = [] if login is None else [LocalLoginPages(login)]
        gateway = Gateway(
            app,
            is_open=insecure,
            prefix=root_path.rstrip("/"),
            extensions=[*pages, Dashboard(app, links)],
            cors_origins=origins,
            embed_origins=embedding,
            local_login=login,
        )

        def tell(url: str) -> None:
            shown = url if login is None else login.link(url)
            say(f"namespace {app.namespace} at {shown}; Ctrl-C stops")

        try:
            server.serve(gateway, options, tell)
        finally:
            gateway.close()


def _app(session: Session, target: str | None) -> Laneway:
    if target is None:
        return session.app(create=True)
    app = load_app(target)
    app.runtime.use_store(session.url, session.namespace if session.namespace_given else None)
    return app
