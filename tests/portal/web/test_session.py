"""Signing in and out."""

from __future__ import annotations

import pytest
from django.test import Client

from pool.core.errors import Code, Refusal
from pool.models import User
from tests.cast import PASSWORD
from tests.portal.web.people import browser

pytestmark = pytest.mark.django_db


def test_it_sends_strangers_to_the_login_and_back(lena: User) -> None:
    client = Client()
    turned = client.get("/reservations/?group=all")
    assert turned.status_code == 302
    assert turned["Location"] == "/login/?next=%2Freservations%2F%3Fgroup%3Dall"
    form = client.get(turned["Location"]).content.decode()
    assert 'name="next" value="/reservations/?group=all"' in form
    answer = client.post(
        "/login/", {"username": "lena", "password": PASSWORD, "next": "/reservations/?group=all"}
    )
    assert answer["Location"] == "/reservations/?group=all"
    assert client.get("/").status_code == 200


def test_it_says_that_name_and_password_do_not_fit_and_keeps_the_name(lena: User) -> None:
    answer = Client().post("/login/", {"username": "lena", "password": "wrong", "next": "/nodes/"})
    page = answer.content.decode()
    assert answer.status_code == 422
    assert "do not fit together" in page
    assert 'role="alert"' in page
    assert 'value="lena"' in page
    assert 'value="/nodes/"' in page
    assert "wrong" not in page


@pytest.mark.parametrize(
    "elsewhere", ["https://evil.example/", "//evil.example/", "javascript:alert(1)", "\\\\evil.example"]
)
def test_it_sends_nobody_to_another_site(lena: User, elsewhere: str) -> None:
    answer = Client().post("/login/", {"username": "lena", "password": PASSWORD, "next": elsewhere})
    assert answer["Location"] == "/"


def test_a_service_account_cannot_sign_in(robot: User) -> None:
    assert Client().post("/login/", {"username": "robot", "password": ""}).status_code == 422


def test_it_signs_out_by_post_alone(lena: User) -> None:
    client = browser(lena)
    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/").status_code == 302


def test_a_live_part_whose_session_ended_takes_the_page_to_the_login(db: None) -> None:
    answer = Client().get(
        "/nodes/", headers={"HX-Request": "true", "HX-Current-URL": "http://testserver/nodes/?q=dgx"}
    )
    assert answer.status_code == 401
    assert answer["HX-Redirect"] == "/login/?next=%2Fnodes%2F%3Fq%3Ddgx"


def test_a_browser_gets_the_language_of_the_profile_unless_it_chose_one(lena: User) -> None:
    lena.language = "zh-hans"
    lena.save()
    login = {"username": "lena", "password": PASSWORD}
    fresh, chosen = Client(), Client()
    chosen.cookies["django_language"] = "en"
    assert fresh.post("/login/", login).cookies["django_language"].value == "zh-hans"
    assert "django_language" not in chosen.post("/login/", login).cookies


def test_the_frame_switches_the_language(lena: User) -> None:
    client = browser(lena)
    client.post("/language/", {"language": "zh-hans", "next": "/"})
    assert '<html lang="zh-hans"' in client.get("/").content.decode()


def test_a_post_without_its_token_is_refused_in_the_frame(lena: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(lena)
    answer = client.post("/logout/")
    assert answer.status_code == 403
    assert "The form has expired" in answer.content.decode()


def test_a_fault_of_ours_is_told_in_the_frame_without_details(
    lena: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("the secret reason")

    monkeypatch.setattr("portal.web.overview.clock.now", break_down)
    client = Client(raise_request_exception=False)
    client.force_login(lena)
    answer = client.get("/")
    assert answer.status_code == 500
    assert "Something broke on our side" in answer.content.decode()
    assert "secret reason" not in answer.content.decode()


def test_what_cannot_be_answered_now_is_a_page_with_the_next_step(
    lena: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise Refusal(Code.BUSY)

    monkeypatch.setattr("portal.web.overview.clock.now", busy)
    answer = browser(lena).get("/")
    assert answer.status_code == 503
    assert "Try again in a few seconds." in answer.content.decode()
