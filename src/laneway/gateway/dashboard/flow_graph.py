"""
The graph of a flow around one call: the calls that have signaled it, and those that wait for it.

It is read from the messages that wait: each names the calls after it, and has the signals of the
calls before it. A call that has ended is gone, so the graph shows the flow from now on.
"""

from __future__ import annotations

import msgspec

from laneway.engines.base import FLOW_HEADER, SIGNALS_HEADER, TASK_HEADER, FullEngine, MessageView
from laneway.printable import escaped
from laneway.tasks import flow, outcomes

MOST = 40
"""The maximum number of calls in a graph."""

MOST_BEFORE = 8
"""The maximum number of earlier calls that are shown one by one."""

WIDTH, HEIGHT, GAP_X, GAP_Y = 168, 40, 44, 12
TITLE = 19
"""Characters of a title that fit into a box."""


class Node(msgspec.Struct):
    """
    A call. `topic`: None: it has ended, so only its id is known. `note`: what it waits for, or how
    many calls it stands for. `x`, `y`: of its box in the picture.
    """

    id: str
    topic: str | None
    title: str
    state: str
    note: str = ""
    is_asked: bool = False
    x: int = 0
    y: int = 0

    @property
    def short_title(self) -> str:
        """Its title as it fits into the box: of an id the end, in which ids of a flow differ."""
        title = escaped(self.title)  # before it is cut: what is escaped is longer
        if len(title) <= TITLE:
            return title
        return f"…{title[1 - TITLE :]}" if self.topic is None else title[: TITLE - 1] + "…"


class Graph(msgspec.Struct):
    """
    A graph. `lines`: paths from box to box. `width`, `height`: of the picture. `is_cut`: there are
    more calls.
    """

    nodes: list[Node]
    lines: list[str]
    width: int
    height: int
    is_cut: bool = False


class _Signal(msgspec.Struct):
    id: str
    status: str


_signal = msgspec.json.Decoder(_Signal).decode


def graph_of(engine: FullEngine, job_id: str, topic: str) -> Graph | None:
    """The graph around a call, or None without a flow or after its end. Reads `MOST` messages."""
    message = engine.find(job_id, topic)
    if message is None or FLOW_HEADER not in (message.headers or {}):
        return None
    return _Builder(engine).build(message)


class _Builder:
    def __init__(self, engine: FullEngine) -> None:
        self._engine = engine
        self._columns: list[list[Node]] = []
        self._nodes: dict[tuple[str | None, str], Node] = {}
        self._edges: list[tuple[Node, Node]] = []
        self._is_cut = False

    def build(self, message: MessageView) -> Graph:
        before = calls_before(message)
        asked = _node(message)
        asked.is_asked = True
        if before:
            self._columns.append(before)
        self._columns.append([asked])
        self._nodes[message.topic, message.id] = asked
        self._edges += [(node, asked) for node in before]
        wave = [(asked, message)]
        while wave:
            wave = self._add_following(wave)
        return self._laid_out()

    def _add_following(
        self, wave: list[tuple[Node, MessageView]]
    ) -> list[tuple[Node, MessageView]]:
        following, column = [], []
        for node, message in wave:
            found = flow.of(message.body, message.headers)
            for target in found.then if found is not None else ():
                key = target.topic, target.id
                known = self._nodes.get(key)
                if known is None:
                    if len(self._nodes) >= MOST:
                        self._is_cut = True
                        continue
                    there = self._engine.find(target.id, target.topic)
                    known = self._nodes[key] = (
                        Node(target.id, target.topic, target.topic, "finished")
                        if there is None
                        else _node(there)
                    )
                    column.append(known)
                    if there is not None:
                        following.append((known, there))
                self._edges.append((node, known))
        if column:
            self._columns.append(column)
        return following

    def _laid_out(self) -> Graph:
        most = max(len(column) for column in self._columns)
        height = most * (HEIGHT + GAP_Y) - GAP_Y
        for place, column in enumerate(self._columns):
            top = (height - len(column) * (HEIGHT + GAP_Y) + GAP_Y) // 2
            for n, node in enumerate(column):
                node.x, node.y = place * (WIDTH + GAP_X), top + n * (HEIGHT + GAP_Y)
        lines = [_line(one, other) for one, other in self._edges if one.x < other.x]
        width = len(self._columns) * (WIDTH + GAP_X) - GAP_X
        nodes = [node for column in self._columns for node in column]
        return Graph(nodes, lines, width, height, self._is_cut)


def _line(one: Node, other: Node) -> str:
    x, y = one.x + WIDTH, one.y + HEIGHT // 2
    to_x, to_y = other.x, other.y + HEIGHT // 2
    middle = (x + to_x) // 2
    return f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}"


def _node(message: MessageView) -> Node:
    headers = message.headers or {}
    wanted, arrived = headers.get(SIGNALS_HEADER), len(message.bodies or [0]) - 1
    waits = wanted is not None and message.state == "delayed"
    return Node(
        message.id,
        message.topic,
        headers.get(TASK_HEADER, message.topic),
        "deferred" if waits else message.state,
        f"{arrived} of {wanted} arrived" if waits else "",
    )


def calls_before(message: MessageView) -> list[Node]:
    """The calls that have signaled a message; of many that succeeded, their number."""
    found = []
    for body in (message.bodies or [])[1:]:
        try:
            signal = _signal(body)
        except (ValueError, RecursionError):  # it is not ours
            continue
        found.append(Node(signal.id, None, signal.id, signal.status))
    if len(found) <= MOST_BEFORE:
        return found
    failed = [node for node in found if node.state != outcomes.SUCCESS][: MOST_BEFORE - 1]
    rest = len(found) - len(failed)
    return [*failed, Node("", None, f"{rest:,} calls", "finished")]
