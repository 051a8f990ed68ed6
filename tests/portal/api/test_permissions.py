"""Who may book for whom, and what strangers are not told."""

from __future__ import annotations

import pytest

from pool.models import Event, Membership, QuotaLine, Reservation, Team
from tests.portal.api.asking import BODY, RESERVATIONS, ask, problem, tomorrow, wrong


@pytest.fixture
def lead(api, lena, node):
    return api(lena)


def test_a_lead_books_for_a_service_account_and_the_audit_keeps_who_did(lead):
    body = lead.book(BODY | {"owner": "robot"}).json()
    assert (body["owner"], body["booked_by"]) == ("robot", "lena")
    assert Event.objects.get(verb="reservation.booked").actor_label == "lena"


def test_the_owner_may_release_what_a_lead_booked(lead, api, robot):
    made = lead.book(tomorrow(owner="robot")).json()
    assert api(robot).post(f"{RESERVATIONS}/{made['id']}/release").json()["state"] == "cancelled"


def test_a_member_books_but_not_for_others(api, milo, node):
    member = api(milo)
    assert member.book().status_code == 201
    problem(member.book(BODY | {"owner": "lena"}), 403, "forbidden")


def test_an_owner_outside_the_team_is_refused(lead, nothing_written):
    assert wrong(lead.book(BODY | {"owner": "sam"})) == {("/owner", "not_a_member")}


@pytest.mark.parametrize("who", ["otto", "ada", "anna"])
def test_global_roles_do_not_spend_a_teams_quota(api, cast, node, who, nothing_written):
    assert api(getattr(cast, who)).book().status_code in (403, 404)


@pytest.mark.parametrize("action", ["", "/extend", "/release", "/events"])
def test_a_strangers_id_is_like_one_that_does_not_exist(lead, api, sam, action):
    made = lead.book(tomorrow()).json()["id"]
    nobody = "0190a1b2-0000-7000-8000-000000000000"
    stranger = api(sam)
    body = {"duration": "PT1H"} if action == "/extend" else {}
    answers = []
    for pk in (made, nobody):
        path = f"{RESERVATIONS}/{pk}{action}"
        response = stranger.post(path, body) if action in ("/extend", "/release") else stranger.get(path)
        answers.append({**problem(response, 404, "not_found"), "request_id": ""})
    assert answers[0] == answers[1]
    assert Reservation.objects.get().state == "scheduled"


def test_a_refusal_names_no_other_team(lead, api, sam, speech):
    taken = {"team": "speech", "ask": {"kind": "mig", "profile": "7g.80gb"}, "title": "Sams secret"}
    assert api(sam).book(tomorrow(**taken)).status_code == 201
    refused = lead.book(tomorrow(ask(profile="7g.80gb", count=1)))
    problem(refused, 409, "no_capacity")
    assert b"speech" not in refused.content
    assert b"secret" not in refused.content
    assert b"sam" not in refused.content


def test_a_refusal_for_quota_has_no_numbers_of_rows(api, milo, vision, main_pool, node):
    """The line that is full may be that of a team above, which a member of this one does not see."""
    above = Team.objects.create(name="above")
    QuotaLine.objects.create(team=above, pool=main_pool, guaranteed_milli=0, cap_milli=100)
    Team.objects.filter(pk=vision.pk).update(parent=above)
    told = problem(api(milo).book(), 409, "quota_exceeded")
    assert (told["reason"], told["cap"]) == ("over_cap", 100)
    assert not {"line", "team"} & set(told)


def test_a_token_of_a_team_reaches_only_that_team(api, lena, speech, vision, node):
    Membership.objects.create(user=lena, team=speech, role="lead")
    wide, narrow = api(lena), api(lena, team=vision)
    theirs = wide.book(tomorrow(team="speech")).json()["id"]
    ours = narrow.book(tomorrow()).json()["id"]
    problem(narrow.book(tomorrow(team="speech")), 403, "forbidden")
    problem(narrow.get(f"{RESERVATIONS}/{theirs}"), 404, "not_found")
    problem(narrow.post(f"{RESERVATIONS}/{theirs}/release"), 404, "not_found")
    assert [one["id"] for one in narrow.get(RESERVATIONS).json()["results"]] == [ours]
    assert len(wide.get(RESERVATIONS).json()["results"]) == 2
