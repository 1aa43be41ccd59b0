"""`Session`: a browser that has logged in, and how long that lasts."""

from __future__ import annotations

import msgspec

SESSION_SECONDS = 12 * 3600
"""How long a cookie is valid."""

LOGIN_SECONDS = 7 * 86_400
"""How long after the login a cookie is valid at most."""


class Session(msgspec.Struct, frozen=True):
    """
    A browser's session. `token`: the id of its token. `login_s`, `renewed_s`: Unix seconds.

    `csrf`: what forms send as `csrf`.
    """

    id: str
    token: str
    login_s: int
    renewed_s: int
    csrf: str

    @property
    def expires_s(self) -> int:
        """When the cookie ends."""
        return min(self.renewed_s + SESSION_SECONDS, self.login_s + LOGIN_SECONDS)
