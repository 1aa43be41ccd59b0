"""Templates of topics, keys and ids that name arguments of a call: `"mail.{customer}"`."""

from __future__ import annotations

import inspect
import string
from typing import Any

from laneway.errors import BadMessage, UsageError


class _ResultBefore:
    """An argument whose value is the result of an earlier call of the flow: unknown until then."""

    def __format__(self, spec: str) -> str:
        raise BadMessage(
            "a topic, key or id cannot contain the result of an earlier call; set it with the"
            " call: .set(topic=…, key=…)"
        )


RESULT_BEFORE = _ResultBefore()


class Template:
    """
    A text with the names of arguments in braces.

    `task`, `what`: the task's name and the option, for error messages. Raises UsageError if the
    text is no template, or names an argument that the function does not have.
    """

    def __init__(self, task: str, what: str, text: str, signature: inspect.Signature) -> None:
        self.text = text
        self._task = task
        self._what = what
        try:
            self.fields = [
                name for _, name, _, _ in string.Formatter().parse(text) if name is not None
            ]
        except ValueError as error:
            raise UsageError(
                f'task "{task}": the {what} {text!r} is no template ({error})'
            ) from error
        for name in self.fields:
            if name not in signature.parameters:
                known = ", ".join(signature.parameters) or "none"
                raise UsageError(
                    f'task "{task}": the {what} {text!r} names "{name}", which is no argument of'
                    f" the function; available: {known}"
                )

    def fill(self, arguments: dict[str, Any]) -> str:
        """The text for one call. Raises BadMessage if an argument that it names is empty."""
        if not self.fields:
            return self.text
        for name in self.fields:
            if arguments[name] is None or arguments[name] == "":
                raise BadMessage(
                    f'task "{self._task}": the {self._what} {self.text!r} needs "{name}", which is'
                    f" {arguments[name]!r}"
                )
        return self.text.format_map(arguments)

    def pattern(self) -> str:
        """The policy pattern that covers this topic. Raises UsageError if no pattern does."""
        stem, brace, _ = self.text.partition("{")
        if not brace:
            return self.text
        if not stem.endswith("."):
            raise UsageError(
                f'task "{self._task}": policy fields need a topic like "mail.{{customer}}", got'
                f" {self.text!r}; use app.policy"
            )
        return stem + "*"
