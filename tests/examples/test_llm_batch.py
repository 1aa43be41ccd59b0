"""The LLM batch: everything is summarized, within the provider's limits, and nobody starves."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.llm_batch.provider import BUCKET, CALLS_AT_ONCE, TOKENS_PER_SECOND
from examples.llm_batch.run import run


def test_a_batch_within_the_providers_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers, three customers, one of whom has most of the documents."""
    for name in ("LANEWAY_URL", "PROVIDER_URL"):
        monkeypatch.setenv(name, "")  # restored afterwards
    found = run(tmp_path)
    assert found["summarized"] == found["documents"] == 108
    assert found["calls"] == 108, "each document is paid for once"
    assert found["calls at once"] <= CALLS_AT_ONCE
    assert found["tokens"] <= TOKENS_PER_SECOND * found["seconds"] + BUCKET
    assert found["calls until small was ready"] < 0.6 * found["calls until large was ready"]
    assert found["calls until tiny was ready"] < 0.3 * found["calls until large was ready"]
