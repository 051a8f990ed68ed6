"""Where the pieces have to lie, asked on the booking page: folded up until it is of interest."""

from __future__ import annotations

import html

import pytest
from django.test import Client

from pool.models import Reservation
from tests.cast import SimNode
from tests.portal.web.people import page_of
from tests.portal.web.test_booking import TYPED, send

pytestmark = pytest.mark.django_db


def test_where_the_pieces_lie_is_asked_kept_and_shown(node: SimNode, milos: Client) -> None:
    page = page_of(milos.get("/book/"))
    assert "All in one NVLink domain" in page
    assert '<details class="mt-3" open>' not in page
    refused = page_of(send(milos, segment="3"))
    assert '<details class="mt-3" open>' in refused
    answer = milos.post("/book/", TYPED | {"node_cpu": "2", "node_memory": "4"}, follow=True)
    assert "2 CPUs with each" in page_of(answer)
    assert "4 GiB of the node's memory with each" in html.unescape(page_of(answer))
    asked = Reservation.objects.get().ask
    assert (asked["node_cpu_milli"], asked["node_memory_mib"]) == (2000, 4096)
