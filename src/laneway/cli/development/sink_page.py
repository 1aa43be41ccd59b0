"""The page of `laneway dev --sink`: switches, and the requests that came."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape

import msgspec

from laneway.printable import escaped


class Switches(msgspec.Struct, frozen=True):
    """
    How requests are answered: with `status`, after `delay` seconds; `close`: not at all, the
    connection is closed.
    """

    status: int = 200
    delay: float = 0.0
    close: bool = False


class Entry(msgspec.Struct, frozen=True):
    """A received request, and how it was answered."""

    number: int
    at: float
    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes
    size: int
    answer: str


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
"""The content security policy of every answer."""

STYLE = """\
:root { color-scheme: light dark; --ground: light-dark(#fafaf9, #121315);
  --surface: light-dark(#ffffff, #191a1d); --text: light-dark(#1b1c1f, #e5e6e9);
  --muted: light-dark(#5c6068, #9da3ad); --line: light-dark(#e4e4e1, #2b2d32);
  --strong: light-dark(#85888f, #6c717b); --accent: light-dark(#3346d3, #9daaff); }
* { box-sizing: border-box; }
body { font: 0.875rem/1.5 system-ui, sans-serif; background: var(--ground); color: var(--text);
  max-width: 60rem; margin: 0 auto; padding: 1.5rem 1rem; }
h1 { font-size: 1.3125rem; margin: 0 0 1rem; }
h2 { font-size: 1rem; margin: 1.5rem 0 0.5rem; }
form { display: flex; flex-wrap: wrap; gap: 1rem; align-items: end; background: var(--surface);
  border: 1px solid var(--line); border-radius: 10px; padding: 1rem; }
label { display: grid; font-size: 0.75rem; color: var(--muted); }
label.inline { display: flex; gap: 0.4rem; align-items: center; min-height: 1.875rem; }
input, button { font: inherit; font-size: 0.875rem; color: var(--text); min-height: 1.875rem;
  background: var(--surface); border: 1px solid var(--strong); border-radius: 6px;
  padding: 0.25rem 0.5rem; }
input[type="number"] { width: 7rem; }
button { background: var(--accent); border-color: var(--accent); color: var(--ground);
  font-weight: 600; padding: 0.25rem 0.75rem; cursor: pointer; }
details { border-top: 1px solid var(--line); padding: 0.3rem 0; }
summary { cursor: pointer; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: 0.75rem/1.5 ui-monospace, monospace; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
"""

SCRIPT = """\
// Puts new requests on top, once a second, while the page is visible.
const list = document.getElementById("requests");
async function update() {
  if (document.visibilityState === "visible") {
    const newest = list.querySelector("details")?.dataset.number ?? "0";
    try {
      const answer = await fetch(`_requests?after=${newest}`);
      const newer = await answer.text();
      if (newer) {
        document.getElementById("none")?.remove();
        list.insertAdjacentHTML("afterbegin", newer);
      }
    } catch {} // the receiver has ended, or starts again
  }
  setTimeout(update, 1000);
}
setTimeout(update, 1000);
"""

FILES = {
    "/_style.css": ("text/css", STYLE.encode()),
    "/_page.js": ("text/javascript", SCRIPT.encode()),
}


def page(switches: Switches, received: Iterable[Entry]) -> bytes:
    """The page as HTML."""
    shown = entries(received).decode()
    none = '<p id="none">None yet. Every path takes one, such as <code>/hooks</code>.</p>'
    checked = " checked" if switches.close else ""
    return f"""\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Webhooks received</title>
<meta name="viewport" content="width=device-width">
<link rel="stylesheet" href="_style.css"><script type="module" src="_page.js"></script></head>
<body><main><h1>Webhooks received</h1>
<form method="post" action="_switches">
<label>Status <input type="number" name="status" min="200" max="599"
 value="{switches.status}"></label>
<label>Delay in seconds <input type="number" name="delay" min="0" max="300" step="any"
 value="{switches.delay:g}"></label>
<label class="inline"><input type="checkbox" name="close" value="yes"{checked}>
 Close the connection without a response</label>
<button>Apply to new requests</button></form>
<h2>Requests</h2><div id="requests">{shown or none}</div></main></body></html>
""".encode()


def entries(received: Iterable[Entry]) -> bytes:
    """The requests as HTML, in the given order."""
    return "".join(map(_entry, received)).encode()


def _entry(entry: Entry) -> str:
    at = datetime.fromtimestamp(entry.at, UTC).astimezone().strftime("%H:%M:%S")
    headers = "\n".join(f"{name}: {value}" for name, value in entry.headers)
    cut = f"\n… ({entry.size:,} bytes)" if entry.size > len(entry.body) else ""
    return (
        f'<details data-number="{entry.number}"><summary>{at}'
        f" <b>{_shown(entry.method)}</b> {_shown(entry.path[:500])} → {_shown(entry.answer)}"
        f"</summary><pre>{_shown(headers)}\n\n{_shown(_body(entry.body))}{cut}</pre></details>\n"
    )


def _body(body: bytes) -> str:
    """JSON with line breaks, other text as it is, else hexadecimal."""
    try:
        return msgspec.json.format(body, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.hex(" ")


def _shown(text: str) -> str:
    return escape(escaped(text, lines=True))
