"""The list of reservations, and one with its live state, its places, its events and its buttons."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta

import msgspec
import pytest
from django.test import Client

from pool.core import wire
from pool.core.errors import Code, Refusal
from pool.models import Reservation, User
from pool.queries import clock
from pool.services import reservations
from tests.cast import Cast, SimNode
from tests.portal.web.people import book, browser, page_of

pytestmark = pytest.mark.django_db

HTMX = {"HX-Request": "true"}


def known_end(client: Client, made: Reservation) -> str:
    found = re.search(r'name="known_end"\s+value="([^"]+)"', page_of(client.get(f"/reservations/{made.pk}/")))
    assert found is not None
    return found[1]


# --- The list -------------------------------------------------------------------


def test_the_list_has_what_the_team_holds_and_nothing_of_others(
    cast: Cast, node: SimNode, milos: Client, sams: Client
) -> None:
    book(cast.lena, title="Of the lead")
    book(cast.sam, team="speech", title="Of speech")
    assert "Of the lead" in page_of(milos.get("/reservations/"))
    assert "Of speech" not in page_of(milos.get("/reservations/"))
    assert "Of the lead" not in page_of(sams.get("/reservations/?group=all&team=vision"))


def test_the_groups_part_now_ahead_and_over(cast: Cast, node: SimNode, milos: Client) -> None:
    book(cast.milo, title="Running now")
    book(cast.milo, title="Far ahead", start=clock.now() + timedelta(days=2))
    gone = book(cast.milo, title="Long over", start=clock.now() + timedelta(days=1))
    reservations.release(actor=cast.milo, reservation_id=gone.pk, now=clock.now())
    titles = ("Running now", "Far ahead", "Long over")
    seen = {
        group: tuple(
            title for title in titles if title in page_of(milos.get(f"/reservations/?group={group}"))
        )
        for group in ("open", "now", "ahead", "over", "all", "nonsense")
    }
    assert seen == {
        "open": titles[:2],
        "now": titles[:1],
        "ahead": titles[1:2],
        "over": titles[2:],
        "all": titles,
        "nonsense": titles[:2],
    }


def test_only_mine_leaves_out_those_of_colleagues(cast: Cast, node: SimNode, milos: Client) -> None:
    book(cast.lena, title="Of the lead")
    book(cast.milo, title="My own")
    page = page_of(milos.get("/reservations/?mine=1"))
    assert "My own" in page
    assert "Of the lead" not in page


def test_pages_follow_one_another_without_a_gap(
    cast: Cast, node: SimNode, milos: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portal.web.reservations.PER_PAGE", 2)
    for number in range(5):
        book(cast.milo, title=f"Number {number}")
    seen: list[str] = []
    address = "/reservations/?team=vision"
    while address:
        page = page_of(milos.get(address))
        seen += re.findall(r"Number \d", page)
        older = re.search(r'rel="next" href="([^"]+)"', page)
        address = "/reservations/" + older[1].replace("&amp;", "&") if older else ""
    assert seen == [f"Number {number}" for number in (4, 3, 2, 1, 0)]


def test_an_empty_list_offers_the_next_action(cast: Cast, milos: Client) -> None:
    assert 'href="/book/"' in page_of(milos.get("/reservations/"))
    assert "Nothing fits these filters." in page_of(milos.get("/reservations/?group=over"))


# --- One of them ----------------------------------------------------------------


def test_a_strangers_id_does_not_exist(active: Reservation, sams: Client, milos: Client) -> None:
    unknown = uuid.uuid4()
    for address in (f"/reservations/{active.pk}/", f"/reservations/{unknown}/"):
        answer = sams.get(address)
        assert answer.status_code == 404
        assert "it is not yours to see" in page_of(answer)
        assert "Finetune" not in page_of(answer)
    assert milos.get(f"/reservations/{active.pk}/").status_code == 200


@pytest.mark.parametrize("action", ["extend", "release"])
def test_a_stranger_can_neither_extend_nor_release(active: Reservation, sams: Client, action: str) -> None:
    answer = sams.post(f"/reservations/{active.pk}/{action}/", {"by": "30", "known_end": "x"})
    assert answer.status_code == 404
    active.refresh_from_db()
    assert active.state == "active"


def test_it_shows_what_is_held_how_to_connect_and_what_happened(active: Reservation, milos: Client) -> None:
    allocation = active.allocations.get()
    page = page_of(milos.get(f"/reservations/{active.pk}/"))
    assert allocation.mig_uuid in page
    assert f"export CUDA_VISIBLE_DEVICES={allocation.mig_uuid}" in page
    assert f"export GPUPOOL_RESERVATION={active.pk}" in page
    assert "docker run --gpus" in page
    assert "Not enforced" in page
    assert "Kept apart by: Hardware" in page
    assert "NVIDIA_VISIBLE_DEVICES" in page.split("they are denied:")[1]
    assert "node:node-1" in page
    assert "0.125 GPU" in page


def test_it_shows_no_lines_before_it_is_ready(cast: Cast, node: SimNode, milos: Client) -> None:
    made = book(cast.milo)
    page = page_of(milos.get(f"/reservations/{made.pk}/"))
    assert "no MIG UUID yet" in page
    assert "CUDA_VISIBLE_DEVICES" not in page


def test_each_slice_has_its_own_line_because_a_process_sees_one(
    cast: Cast, node: SimNode, milos: Client
) -> None:
    made = book(cast.milo, count=2)
    node.follow()
    page = page_of(milos.get(f"/reservations/{made.pk}/"))
    assert page.count("export CUDA_VISIBLE_DEVICES=MIG-") == 2
    assert "A process sees one MIG slice or one share" in page


def test_the_live_part_answers_alone_and_only_to_htmx(active: Reservation, milos: Client) -> None:
    address = f"/reservations/{active.pk}/"
    part, whole = milos.get(address, headers=HTMX), milos.get(address)
    assert page_of(part).lstrip().startswith('<div id="live"')
    assert "<html" not in page_of(part)
    assert "<html" in page_of(whole)
    assert "HX-Request" in part["Vary"]


def test_it_looks_each_second_while_it_starts_then_less_and_never_when_it_is_over(
    cast: Cast, node: SimNode, milos: Client
) -> None:
    made = book(cast.milo)
    address = f"/reservations/{made.pk}/"

    def looks() -> list[str]:
        return re.findall(r'hx-trigger="every (\w+), seen"', page_of(milos.get(address)))

    assert looks() == ["1s"]
    node.follow()
    assert looks() == ["5s"]
    reservations.release(actor=cast.milo, reservation_id=made.pk, now=clock.now())
    assert looks() == ["1s"]
    node.follow()
    assert looks() == []
    assert "Ended" in page_of(milos.get(address))


def test_a_node_that_is_not_heard_leaves_it_active_and_is_named(
    active: Reservation, node: SimNode, milos: Client
) -> None:
    node.row.refresh_from_db()
    node.row.received_at = clock.real_now() - timedelta(minutes=5)
    node.row.save()
    page = page_of(milos.get(f"/reservations/{active.pk}/"))
    assert "node-1 has not been heard from since" in page
    assert "Active" in page


def test_a_lost_gpu_leaves_it_active_and_says_what_to_do(
    active: Reservation, node: SimNode, milos: Client
) -> None:
    address = f"/reservations/{active.pk}/"
    node.gpus[0].lost = True
    node.send()
    page = page_of(milos.get(address))
    assert "node-1 GPU 0 is lost" in page
    assert "release it and book anew" in page
    assert "CUDA_VISIBLE_DEVICES" not in page
    assert "the node reported it ready" not in page.split("What happened")[0]
    active.refresh_from_db()
    assert active.state == "active"
    node.gpus[0].lost = False
    node.send()
    assert "is lost" not in page_of(milos.get(address))


def test_a_gpu_missing_from_reports_is_unknown(active: Reservation, node: SimNode, milos: Client) -> None:
    node.send(node.report(gpus=()))
    page = page_of(milos.get(f"/reservations/{active.pk}/"))
    assert "node-1 GPU 0 has been missing from its node's reports since" in page
    assert "is lost" not in page


def test_what_ends_names_the_process_that_keeps_it_until_it_is_gone(
    active: Reservation, node: SimNode, milos: Client, sams: Client
) -> None:
    Reservation.objects.update(visibility="everyone")
    address = f"/reservations/{active.pk}/"
    milos.post(f"{address}release/")
    card = node.gpus[0]
    user = wire.Process(pid=4711, name="<python>", user="milo")
    card.instances = [msgspec.structs.replace(one, processes=(user,)) for one in card.instances]
    card.trouble = wire.Trouble(generation=node.rows()[0].generation, code="in_use", holders=(user,))
    node.send()
    page, others = page_of(milos.get(address)), page_of(sams.get(address))
    assert "1g.10gb on node-1 GPU 0 cannot be taken back" in page
    assert "&lt;python&gt; (pid 4711, user milo)" in page
    assert "End it; the slice then goes." in page
    assert "cannot be taken back" in others
    assert "only its team is told" in others
    assert "4711" not in others
    node.follow()
    assert "cannot be taken back" not in page_of(milos.get(address))


def test_times_are_in_the_zone_of_the_viewer_with_the_instant_in_the_title(
    cast: Cast, node: SimNode, milo: User
) -> None:
    milo.zone = "Asia/Shanghai"
    milo.save()
    start = (clock.now() + timedelta(days=3)).replace(hour=18, minute=30, second=0, microsecond=0)
    made = book(milo, start=start)
    page = page_of(browser(milo).get(f"/reservations/{made.pk}/"))
    local = start + timedelta(hours=8)
    assert f'title="{local:%Y-%m-%dT%H:%M:%S}+08:00 Asia/Shanghai"' in page
    assert f"{local:%H:%M}</time>" in page
    assert "All times in Asia/Shanghai" in page


# --- Extend and release ---------------------------------------------------------


def test_it_is_extended_from_the_end_that_was_shown_and_twice_is_once(
    active: Reservation, milos: Client
) -> None:
    before = active.period.upper
    typed = {"by": "30", "known_end": known_end(milos, active)}
    for _ in range(2):
        answer = milos.post(f"/reservations/{active.pk}/extend/", typed)
        assert answer.status_code == 302
    active.refresh_from_db()
    assert active.period.upper == before + timedelta(minutes=30)
    assert "Extended: it ends" in page_of(milos.get(answer["Location"]))


def form_key(page: str) -> str:
    found = re.search(r'name="key" value="([0-9a-f]{32})" form="extend-form"', page)
    assert found is not None
    return found[1]


def test_a_second_click_extends_once_although_the_page_showed_the_new_end_in_between(
    active: Reservation, milos: Client
) -> None:
    before = active.period.upper
    key = form_key(page_of(milos.get(f"/reservations/{active.pk}/")))
    for _ in range(2):
        typed = {"by": "30", "known_end": known_end(milos, active), "key": key}
        answer = milos.post(f"/reservations/{active.pk}/extend/", typed)
        assert answer.status_code == 302
        active.refresh_from_db()
    assert active.period.upper == before + timedelta(minutes=30)
    again = form_key(page_of(milos.get(f"/reservations/{active.pk}/")))
    typed = {"by": "30", "known_end": known_end(milos, active), "key": again}
    milos.post(f"/reservations/{active.pk}/extend/", typed)
    active.refresh_from_db()
    assert active.period.upper == before + timedelta(hours=1)


def test_a_form_that_is_sent_again_with_another_time_is_told_in_words_of_the_page(
    active: Reservation, milos: Client
) -> None:
    key = form_key(page_of(milos.get(f"/reservations/{active.pk}/")))
    for by, status in (("30", 302), ("60", 422)):
        typed = {"by": by, "known_end": known_end(milos, active), "key": key}
        answer = milos.post(f"/reservations/{active.pk}/extend/", typed)
        assert answer.status_code == status
    page = page_of(answer)
    assert "with another time to add" in page
    assert "Idempotency-Key" not in page
    assert form_key(page) != key


def test_a_click_while_the_first_is_worked_on_leads_back_to_the_page(
    active: Reservation, milos: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(**_: object) -> None:
        raise Refusal(Code.IN_PROGRESS)

    typed = {"by": "30", "known_end": known_end(milos, active), "key": "k"}
    monkeypatch.setattr(reservations, "extend", busy)
    answer = milos.post(f"/reservations/{active.pk}/extend/", typed)
    assert answer.status_code == 302
    assert "It is being extended already." in page_of(milos.get(answer["Location"]))


def test_what_is_fetched_anew_leaves_the_key_of_the_form_alone(active: Reservation, milos: Client) -> None:
    live = page_of(milos.get(f"/reservations/{active.pk}/", headers=HTMX))
    assert 'id="extend-form"' in live
    assert 'name="key"' not in live


def test_an_extension_into_the_next_booking_is_refused_with_the_reason(
    cast: Cast, node: SimNode, milos: Client
) -> None:
    made = book(cast.milo, profile="7g.80gb")
    book(cast.sam, team="speech", profile="7g.80gb", start=made.period.upper + timedelta(minutes=10))
    answer = milos.post(f"/reservations/{made.pk}/extend/", {"by": "60", "known_end": known_end(milos, made)})
    page = page_of(answer)
    assert answer.status_code == 409
    assert 'role="alert"' in page
    assert "No room" in page
    before = made.period.upper
    made.refresh_from_db()
    assert made.period.upper == before


@pytest.mark.parametrize("typed", [{}, {"by": "-5"}, {"amount": "x"}, {"by": "30", "known_end": "soon"}])
def test_an_extension_that_says_nothing_sensible_is_refused(
    active: Reservation, milos: Client, typed: dict[str, str]
) -> None:
    before = active.period.upper
    answer = milos.post(f"/reservations/{active.pk}/extend/", typed)
    active.refresh_from_db()
    assert answer.status_code == 422
    assert active.period.upper == before


def test_its_owner_releases_it_by_post_alone(active: Reservation, node: SimNode, milos: Client) -> None:
    assert milos.get(f"/reservations/{active.pk}/release/").status_code == 405
    assert milos.post(f"/reservations/{active.pk}/release/").status_code == 302
    active.refresh_from_db()
    assert active.state == "ending"
    again = milos.post(f"/reservations/{active.pk}/release/")
    assert again.status_code == 302
    node.follow()
    active.refresh_from_db()
    assert (active.state, active.state_reason) == ("ended", "released")


def test_what_has_not_started_is_cancelled(cast: Cast, node: SimNode, milos: Client) -> None:
    made = book(cast.milo, start=clock.now() + timedelta(days=1))
    address = f"/reservations/{made.pk}/"
    assert "Cancel the reservation" in page_of(milos.get(address))
    milos.post(address + "release/")
    assert "Cancelled." in page_of(milos.get(address))


def test_a_colleague_sees_it_without_buttons_and_cannot_release_it(
    cast: Cast, node: SimNode, milos: Client, lenas: Client
) -> None:
    made = book(cast.lena)
    page = page_of(milos.get(f"/reservations/{made.pk}/"))
    assert "Release…" not in page
    answer = milos.post(f"/reservations/{made.pk}/release/")
    assert answer.status_code == 403
    assert "Your role does not allow this." in page_of(answer)
    assert "Release…" in page_of(lenas.get(f"/reservations/{made.pk}/"))


def test_a_lead_may_release_what_a_member_holds(active: Reservation, lenas: Client) -> None:
    assert lenas.post(f"/reservations/{active.pk}/release/").status_code == 302
    active.refresh_from_db()
    assert active.state_reason == "released_by_lead"
