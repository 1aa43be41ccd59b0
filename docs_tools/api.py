"""
The reference of the Python API: a page for each group of classes, from signatures and docstrings.

Only documented public names have a place. A docstring explains an argument by "`name`: text", which
becomes a row of the table of arguments; the rest of the docstring is prose.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import json
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import laneway
from docs_tools.meanings import MEANINGS
from laneway import Laneway, errors
from laneway.runtime.runtime import Noun

BASE = Path(laneway.__file__).parent / "engines" / "base"


class Page(NamedTuple):
    """A page of the reference."""

    title: str
    about: str
    names: list[str]


PAGES = {
    "application": Page("The application", "What a program creates first.", ["Laneway"]),
    "messages": Page(
        "Messages and topics",
        "What is published, leased and kept.",
        ["Message", "Receipt", "Delivery", "Topic", "Stats", "DeadLetter"],
    ),
    "tasks": Page(
        "Tasks, jobs and flows",
        "Calls of functions, their results, and calls that depend on each other.",
        [
            *("Task", "Request", "current_request", "Job", "JobState", "get_task_logger"),
            *("SoftTimeLimit", "Signature", "chain", "group", "chord", "Queue", "Dependency"),
        ],
    ),
    "settings": Page(
        "Tiers, producers, subscriptions",
        "What arguments of the application are made of.",
        [
            *("Tier", "Backoff", "Buffer", "Spool", "SpoolStatus"),
            *("SubscriptionInfo", "Consumer"),
        ],
    ),
    "workers": Page(
        "Workers and history",
        "What runs, and what happened.",
        [
            *("Summary", "WorkerInfo", "once", "aonce", "forget_once", "aforget_once"),
            *("History", "HistoryRow", "HistoryPart", "WaitingTimes", "Alarm"),
        ],
    ),
    "elections": Page(
        "Elections", "One process among many.", ["Election", "Career", "Term", "ElectionState"]
    ),
    "tools": Page(
        "Tests, metrics, traces, logs",
        "Modules that programs import separately.",
        [
            *(
                "testing.virtual",
                "testing.eager",
                "testing.simulated",
                "metrics.measure",
                "tracing.trace",
            ),
            *("logs.AddFields", "logs.add_fields"),
        ],
    ),
    "engines": Page(
        "Engines",
        "Protocols for authors of [engines](../writing-an-engine.md); programs do not need them.",
        [f"engines.base.{path.stem}" for path in sorted(BASE.glob("[a-z]*.py"))],
    ),
}
"""The pages, with the names in the order of use."""

ORDER = {
    "Publish": ["publish", "publish_many", "flush", "spool_status"],
    "Handle": ["handler", "task", "schedule", "run_worker", "arun_worker", "worker", "lifespan"],
    "Limit": ["policy", "policy_many", "gate", "topic_group", "tiers"],
    "Look and operate": [
        *("topic", "topics", "explain", "explain_topic", "workers", "lookup"),
        *("wait_idle", "alarm", "on_alarm"),
    ],
    "Call functions by name": ["queue", "job"],
    "Subscribe": ["subscribe"],
    "Push": ["push", "endpoint"],
    "Consume by hand": ["lease", "leases", "ack_many", "extend_many", "release_many"],
    "Hooks and middlewares": [
        *("on_success", "on_failure", "on_retry", "on_dead", "on_unsent"),
        *("around_publish", "around_handling", "carry"),
    ],
    "Serve HTTP": ["asgi"],
    "Elect": ["election"],
    "Open and close": ["close", "aclose", "url", "namespace", "engine", "threads"],
}
"""The members of an application in the order of use."""

OPTIONS = {
    "PolicyOptions": "[policy fields](policy.md)",
    "WorkerOptions": "[options of a worker](settings.md#a-worker)",
    "EmbeddedOptions": "[options of a worker](settings.md#a-worker)",
    "PublishOptions": "options of a [message](api-messages.md#message)",
    "TaskOptions": "options of a [task](../tasks.md), and [policy fields](policy.md)",
    "HandlerOptions": "options of a handler",
}
"""Where the options of a `**` argument are described."""

PRIVATE = {
    "Noun": "threads",
    "Delivery": "lease extended ended",
    "Task": "check_options named_options prepared given keeps_result job local_job message"
    " invocation perform perform_current perform_apart encoded request_for tagged_result"
    " errback_takes errback_args retries_limit lost_limit is_final publish has_hooks",
    "Job": "timeout_error note save_meta",
    "Signature": "calls weave chained on_error eagerly beginning first",
    "Tier": "of",
    "Backoff": "delay_us",
    "Consumer": "claim kind",
    "Summary": "add",
    "Term": "renewed end_soon lose finish loss aborted add_step remove_step is_past_bound",
    "AddFields": "filter",
}
"""Members that have public names for other parts of Laneway, not for programs."""

ARGUMENT = re.compile(r"(?:(?<=^)|(?<=[.;:] )|(?<=\n))(?:- )?((?:`\w+`(?:, | and )?)+):\s")
END = re.compile(r"(?<=\. )(?=Raises |Returns )|(?=\n\n)|\Z")

Row = tuple[str, ...]


def table(head: Row, rows: Iterable[Row]) -> str:
    """A Markdown table. A bar inside a cell is escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += [
        "| " + " | ".join(re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row) + " |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def lines_of(text: str) -> str:
    """Markdown of a docstring: a sentence begins a line, and code stays as it is."""
    text = re.sub(r"^(?! )(.*):\n(?= {4})", r"\1:\n\n", text, flags=re.MULTILINE)
    parts = []
    for part in text.split("\n\n"):
        if part.startswith("    "):
            parts.append(f"```python\n{textwrap.dedent(part)}\n```")
        elif part.startswith("- "):
            items = re.split(r"\n(?=- )", part)
            parts.append("\n".join(f"- {wrapped(item[2:], '  ')}" for item in items))
        elif part.startswith(("```", "|", "1. ")):
            parts.append(part)
        else:
            parts.append(wrapped(part))
    return re.sub(r"```\n\n```python\n", "\n", "\n\n".join(part for part in parts if part))


def wrapped(text: str, indent: str = "") -> str:
    """One sentence a line; long ones are wrapped."""
    flat = re.sub(r"\s+", " ", text).strip()
    lines = re.sub(r"(?<=[.!?]) (?=[A-Z`])|(?<=[.!?]\)) (?=[A-Z`])", "\n", flat).splitlines()
    width = 100 - len(indent)
    return f"\n{indent}".join(
        textwrap.fill(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines
    )


def arguments_in(text: str, names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """The docstring without its explanations of arguments, and these by name."""
    names, meanings, rest, place = set(names), {}, "", 0
    for found in ARGUMENT.finditer(text):
        about = re.findall(r"\w+", found[1].replace(" and ", " "))
        if found.start() < place or not set(about) <= names:
            continue
        following = next(
            (
                each.start()
                for each in ARGUMENT.finditer(text, found.end())
                if set(re.findall(r"\w+", each[1].replace(" and ", " "))) <= names
            ),
            len(text),
        )
        ends = END.search(text, found.end())
        end = min(following, ends.start() if ends else len(text))
        meaning = re.sub(r"\s+", " ", text[found.end() : end]).strip().rstrip(";")
        meaning += "" if meaning.endswith((".", "!", "?")) else "."
        meanings |= dict.fromkeys(about, meaning[:1].upper() + meaning[1:])
        rest += text[place : found.start()]
        place = end
    rest = re.sub(r"\bArguments:\s*", "", rest + text[place:]) if meanings else text
    return re.sub(r"\n{3,}", "\n\n", rest).strip(), meanings


def annotation(kind: Any) -> str:
    """A type as the source has it, without qualifications that only type checkers need."""
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    text = re.sub(r"\btyping\.|\bcollections\.abc\.|\blaneway\.[\w.]*\.(?=[A-Z])", "", text)
    return "" if kind is inspect.Parameter.empty else re.sub(r"^\((.*)\)$", r"\1", text)


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return []
    return [
        each
        for each in signature.parameters.values()
        if each.name not in ("self", "cls", "unknown") and annotation(each.annotation) != "Never"
    ]


def call(name: str, function: Callable[..., Any]) -> str:
    """The signature: one line, or an argument a line."""
    shown, is_keyword = [], False
    for each in parameters(function):
        if each.kind is each.KEYWORD_ONLY and not is_keyword:
            shown, is_keyword = [*shown, "*"], True
        prefix = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        is_keyword = is_keyword or prefix == "*"
        default = "" if each.default is each.empty else f"={default_of(each.default)}"
        shown.append(f"{prefix}{each.name}{default}")
    try:
        answer = annotation(inspect.signature(function).return_annotation)
    except (TypeError, ValueError):
        answer = ""
    arrow = f" -> {answer}" if answer and answer != "None" else ""
    text = f"{name}({', '.join(shown)}){arrow}"
    if len(text) > 96:
        text = f"{name}(\n    " + ",\n    ".join(shown) + f",\n){arrow}"
    return f"```python\n{text}\n```\n"


def default_of(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    text = repr(value)
    return "…" if " at 0x" in text or "<" in text else text


def meaning_of(owner: str, name: str, of_engine: bool = False) -> str:
    """What an argument or field means that its docstring does not explain."""
    owned = MEANINGS.get(f"{owner}.{name}") or (of_engine and MEANINGS.get(f"engine.{name}"))
    return owned or MEANINGS.get(name, "")


def described(name: str, function: Callable[..., Any], head: str, others: Iterable[str]) -> str:
    """A function or method: its signature, its prose, its table of arguments."""
    accepted = parameters(function)
    text, meanings = arguments_in(docstring(function), (each.name for each in accepted))
    rows = []
    for each in accepted:
        kind = annotation(each.annotation)
        if kind in ("P.args", "P.kwargs"):
            continue
        options = re.fullmatch(r"Unpack\[(\w+)\]", kind)
        if options:
            meaning = meanings.get(each.name) or meaning_of(name, each.name)
            meaning = OPTIONS.get(options[1], meaning)
            rows.append((f"`**{each.name}`", "", "", f"{meaning[:1].upper()}{meaning[1:]}"))
        else:
            default = "" if each.default is each.empty else f"`{default_of(each.default)}`"
            shown = f"`{kind}`" if kind else ""
            meaning = meanings.get(each.name) or meaning_of(
                name, each.name, is_for_engines(function)
            )
            rows.append((f"`{each.name}`", shown, default, meaning))
    parts = [f"{head} {name}\n", call(name, function), lines_of(text) + "\n"]
    if rows:
        parts.append(table(("argument", "type", "default", "meaning"), rows))
    if others:
        parts.append(f"Async: {', '.join(f'`{each}`' for each in others)}.\n")
    return "\n".join(part for part in parts if part.strip())


def is_for_engines(value: Any) -> bool:
    return getattr(value, "__module__", "").startswith("laneway.engines")


def docstring(value: Any) -> str:
    return inspect.cleandoc(value.__doc__ or "")


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """The documented public members, those of bases of Laneway included, in their order."""
    seen: set[str] = set()
    for base in kind.__mro__:
        seen |= set(PRIVATE.get(base.__name__, "").split())
        if not base.__module__.startswith("laneway"):
            continue
        for name, value in vars(base).items():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if (
                name not in seen
                and not name.startswith("_")
                and (callable(function) or isinstance(value, property))
                and not isinstance(function, type)
                and getattr(function, "__doc__", None)
            ):
                seen.add(name)
                yield name, value


def fields(kind: type) -> dict[str, tuple[str, str]]:
    """Type and default of each field of a struct, dataclass or named tuple."""
    if issubclass(kind, msgspec.Struct):
        hints = {
            name: text
            for base in reversed(kind.__mro__)
            for name, text in vars(base).get("__annotations__", {}).items()
        }
        names, defaults = kind.__struct_fields__, kind.__struct_defaults__
        required = len(names) - len(defaults)
        return {
            name: (
                annotation(hints.get(name, "")),
                ""
                if n < required or defaults[n - required] is msgspec.NODEFAULT
                else f"`{default_of(defaults[n - required])}`",
            )
            for n, name in enumerate(names)
            if name[0] != "_"
        }
    names = getattr(kind, "__dataclass_fields__", None) or getattr(kind, "_fields", ())
    hints = getattr(kind, "__annotations__", {})
    return {name: (annotation(hints.get(name, "")), "") for name in names if name[0] != "_"}


def class_text(name: str, kind: type, head: str) -> str:
    """A class: its prose, its fields or arguments, its members."""
    own = fields(kind)
    init = vars(kind).get("__init__") if not own else None
    accepted = {each.name: each for each in parameters(init)} if init else {}
    text, meanings = arguments_in(docstring(kind), [*own, *accepted])
    parts = [f"{head} {name}\n", lines_of(text) + "\n"]
    if own:
        rows = [
            (
                f"`{each}`",
                f"`{about}`" if about else "",
                default,
                meanings.get(each) or meaning_of(name, each),
            )
            for each, (about, default) in own.items()
        ]
        parts.append(table(("field", "type", "default", "meaning"), rows))
    elif kind is Laneway:
        parts.append("[Settings](settings.md#the-application) has a table of all arguments.\n")
    elif accepted and meanings:
        rows = [
            (
                f"`{each}`",
                f"`{annotation(parameter.annotation)}`",
                meanings.get(each) or meaning_of(name, each),
            )
            for each, parameter in accepted.items()
        ]
        parts.append(table(("argument", "type", "meaning"), rows))
    found = {each: value for each, value in members(kind) if each not in own}
    roles = [base.__name__ for base in kind.__bases__ if is_for_engines(base)]
    if roles and is_for_engines(kind):  # their members are on the same page
        links = ", ".join(f"[`{role}`](#{role.lower()})" for role in roles)
        parts.append(f"{wrapped(f'Includes the members of {links}.')}\n")
        found = {each: value for each, value in found.items() if each in vars(kind)}
    sections = ORDER if kind is Laneway else {"": list(found)}
    if kind is Laneway:
        placed = {each for section in ORDER.values() for each in section}
        missing = {each for each in found if without_a(each, found) not in placed}
        if missing or placed - set(found):
            raise SystemExit(f"docs_tools/api.py: ORDER: add {missing}, {placed - set(found)}")
    for section, order in sections.items():
        if section:
            parts.append(f"{head}# {section}\n")
        chosen = {each: found[each] for each in order}
        parts += member_texts(name, chosen, found, f"{head}#" if section else head)
    return "\n".join(part for part in parts if part.strip())


def without_a(name: str, names: Iterable[str]) -> str:
    """The name of the method that an async variant is a variant of."""
    return name[1:] if name[0] == "a" and name[1:] in names else name


def member_texts(
    owner: str, chosen: dict[str, Any], every: dict[str, Any], head: str
) -> Iterator[str]:
    variable = "app" if owner == "Laneway" else owner[:1].lower() + owner[1:]
    variable = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", variable).lower()
    properties = {name: each for name, each in chosen.items() if isinstance(each, property)}
    if properties:
        rows = ((f"`{name}`", first_sentence(docstring(each))) for name, each in properties.items())
        yield table(("attribute", "meaning"), rows)
    for name, value in chosen.items():
        if name in properties or without_a(name, every) != name:
            continue
        function = getattr(value, "__func__", value)
        others = [each for each in (f"a{name}",) if each in every]
        yield described(f"{variable}.{name}", function, f"{head}#", others)


def first_sentence(text: str) -> str:
    return re.split(
        r"(?<=[.!?]) (?=[A-Z`])", re.sub(r"\s+", " ", text.split("\n\n", maxsplit=1)[0])
    )[0]


def found(name: str) -> Any:
    """The object of a name below `laneway`."""
    path = f"laneway.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, last = path.rpartition(".")
        return getattr(importlib.import_module(module), last)


def texts(names: Iterable[str]) -> Iterator[str]:
    """The text of each name; a module gives those of its public classes and functions."""
    for name in names:
        value = found(name)
        if inspect.ismodule(value):
            yield f"## laneway.{name}\n"
            yield lines_of(docstring(value)) + "\n"
            for each, member in vars(value).items():
                if getattr(member, "__module__", "") == value.__name__ and each[0] != "_":
                    yield one(each, member, "###")
        else:
            yield one(name if "." not in name else f"laneway.{name}", value, "##")


def one(name: str, value: Any, head: str) -> str:
    if isinstance(value, type):
        return class_text(name, value, head)
    if callable(value) and value.__doc__ and not isinstance(value, typing.TypeVar):
        return described(name, value, head, [])
    return ""


def nouns() -> dict[str, type]:
    """The attributes of an application that have verbs, and their classes."""
    with Laneway("sqlite://", program="docs") as app:
        held = {name: type(value) for name, value in vars(app).items() if isinstance(value, Noun)}
    return dict(sorted(held.items()))


def noun_text(name: str, kind: type) -> str:
    every = {each: value for each, value in members(kind) if each not in ("declare", "install")}
    text = lines_of(re.sub(r": `app\.\w+`", "", docstring(kind), count=1))
    parts = [f"## app.{name}\n", text + "\n", *member_texts(f"app.{name}", every, every, "##")]
    return "\n".join(part for part in parts if part.strip())


def page(note: str, title: str, about: str, parts: Iterable[str]) -> str:
    body = "\n".join(part.rstrip("\n") + "\n" for part in parts if part.strip())
    return re.sub(r"\n{3,}", "\n\n", f"# {title}\n\n{note}\n{about}\n\n{body}")


def overview(note: str) -> str:
    """The first page: every name with its first sentence, in the order of use."""
    parts = []
    for key, each in PAGES.items():
        rows = [
            (f"[`{name}`](api-{key}.md#{anchor(name)})", first_sentence(docstring(found(name))))
            for name in each.names
        ]
        parts.append(f"## {each.title}\n\n{each.about}\n\n{table(('name', 'what it is'), rows)}")
    rows = []
    for name, kind in nouns().items():
        every = [each for each, _ in members(kind) if each not in ("declare", "install")]
        verbs = [each for each in every if without_a(each, every) == each]
        about = first_sentence(docstring(kind)).partition(": `app.")[0]
        link = f"[`app.{name}`](api-nouns.md#{anchor('app.' + name)})"
        rows.append((link, ", ".join(f"`{each}`" for each in verbs), about))
    head = table(("attribute", "verbs", "what it is"), rows)
    parts.insert(1, f"## Attributes of the application\n\n{head}")
    return page(
        note,
        "Python API",
        """The public names of `laneway`, with their arguments, in the order in which programs use
them.
[Errors](errors.md) have a page of their own.

Every method that touches the store has an async variant with an `a` in front: `publish` and
`apublish`.
Durations are seconds, a `timedelta`, or text such as `"10m"`.""",
        parts,
    )


def anchor(name: str) -> str:
    full = name if "." not in name or name.startswith("app.") else f"laneway.{name}"
    return re.sub(r"[^\w-]", "", full.lower())


def pages(note: str) -> dict[str, Callable[[], str]]:
    """The pages by their file names."""
    in_errors = {name for name in laneway.__all__ if hasattr(errors, name)}
    placed = {name for each in PAGES.values() for name in each.names}
    missing = set(laneway.__all__) - in_errors - placed
    if missing:
        raise SystemExit(f"docs_tools/api.py: PAGES: add {sorted(missing)}")
    result: dict[str, Callable[[], str]] = {"api.md": lambda: overview(note)}
    for key, each in PAGES.items():
        result[f"api-{key}.md"] = lambda each=each: page(
            note, each.title, each.about, texts(each.names)
        )
    result["api-nouns.md"] = lambda: page(
        note,
        "Attributes of the application",
        "What the store holds, with the verbs for each kind.",
        (noun_text(name, kind) for name, kind in nouns().items()),
    )
    return result
