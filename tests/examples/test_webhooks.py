"""The shop with broken receivers, at a small size."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.webhooks.webhooks import expected_of, run
from laneway.push import breaker
from laneway.push.secret_store import new_key


def test_broken_receivers_hold_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    All orders of good receivers are delivered, and those of one that recovers; one that is gone is
    disabled, and no broken one gets many requests.
    """
    monkeypatch.setenv("LANEWAY_SECRETS_KEY", new_key())
    monkeypatch.setattr(breaker, "FIRST_SECONDS", 0.2)
    merchants, orders = 200, 3
    found = run(f"sqlite:///{tmp_path}/q.db", merchants, orders, seconds=60)
    for kind in ("good", "slow", "recovers"):
        assert found["delivered"][kind] == expected_of(merchants, orders, (kind,))
    for kind in ("hangs", "fails", "busy", "gone"):
        assert found["delivered"][kind] == 0
        assert 0 < found["requests"][kind] <= 20
    assert found["disabled"] == {"gone": 1}
    assert not found["dead"]
