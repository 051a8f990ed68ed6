"""Whatever the body of a booking holds, the answer is a booking or a refusal, never a fault."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.portal.api.asking import BODY

EXAMPLES = 60

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 10**9, 10**18, 10**30, 2**31, 2**63, 0.5, 1e300]),
    st.text(max_size=20),
    st.sampled_from(["", "\0", "\ud800", "x" * 5000, "2027-03-01T10:00:00", "PT0S", "P999999999D", "-PT1H"]),
    st.sampled_from(["0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "2027-02-30T00:00:00Z"]),
)
value = st.recursive(
    odd, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)
ask = st.fixed_dictionaries(
    {},
    optional={
        "kind": st.sampled_from(["mig", "gpu", "share"]) | odd,
        "profile": st.sampled_from(["1g.10gb", "7g.80gb", "1g.10gb+me"]) | odd,
        "count": st.integers(-1, 9) | odd,
        "model": st.sampled_from(["H100-80GB"]) | odd,
        "models": st.lists(st.sampled_from(["H100-80GB", "B200"]) | odd, max_size=3) | odd,
        "memory_mib": st.integers(0, 90_000) | odd,
        "compute_slices": st.integers(0, 9) | odd,
        "memory_pct": st.integers(-1, 101) | odd,
        "compute": st.dictionaries(st.sampled_from(["guaranteed", "limit"]), st.integers(-1, 101) | odd)
        | odd,
        "sharing": st.sampled_from(["mps", "hami", "timeslice"]) | odd,
        "accept_not_enforced": st.booleans() | odd,
        "same_node": st.booleans() | odd,
        "node": st.sampled_from(["node-1", "nowhere"]) | odd,
    },
)
body = st.fixed_dictionaries(
    {},
    optional={
        "team": st.just("vision") | value,
        "pool": st.just("main") | value,
        "title": st.text(max_size=210) | value,
        "ask": ask | value,
        "start": st.none() | st.just("2027-03-01T10:00:00Z") | value,
        "end": st.just("2027-03-01T12:00:00Z") | value,
        "duration": st.sampled_from(["PT1H", "P1D", "P500D", "PT1S"]) | value,
        "class": st.sampled_from(["interactive", "batch", "online"]) | value,
        "owner": st.sampled_from(["robot", "sam"]) | value,
        "restartable": st.booleans() | value,
    },
)


@pytest.fixture
def lead(api, lena, node):
    return api(lena)


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body | value)
@example({**BODY, "ask": {"kind": "mig", "profile": "\ud800"}})
@example({**BODY, "ask": {"kind": "share", "memory_pct": 10, "compute": {"limit": 10}, "sharing": "\ud800"}})
@example({**BODY, "start": "2999-12-31T23:59:59Z", "duration": "P366D"})
def test_a_body_never_breaks_it(lead, body):
    response = lead.book(json.dumps(body).encode())
    assert response.status_code in (201, 400, 404, 403, 409, 422), response.content


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([*BODY, "end", "owner"]), value, max_size=2))
def test_one_or_two_odd_fields_never_break_it(lead, over):
    response = lead.book(json.dumps(BODY | over).encode())
    assert response.status_code in (201, 400, 404, 403, 409, 422), response.content


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(["team", "state", "overlaps", "limit", "cursor"]), st.text(max_size=30))
)
def test_a_filter_never_breaks_it(lead, query):
    from urllib.parse import urlencode

    response = lead.get(f"/api/v1/reservations?{urlencode(query, errors='replace')}")
    assert response.status_code in (200, 400, 422), response.content
