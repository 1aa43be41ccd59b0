"""How many SQL statements a call of 500 messages runs, whatever features they have."""

from __future__ import annotations

import pytest

from bench import features

MOST = 36
MOST_OF_ALL_TOGETHER = 48


@pytest.mark.parametrize("feature", features.FEATURES, ids=lambda feature: feature.name)
def test_a_call_of_500_messages_runs_few_statements(feature: features.Feature) -> None:
    most = MOST_OF_ALL_TOGETHER if feature is features.ALL else MOST
    assert max(features.statements(feature)) <= most
