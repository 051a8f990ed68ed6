"""Operations that are done together leave what they leave one by one, in the state and in the database."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection, migrations, models
from django.db.migrations.state import ProjectState

from pool.migrations._together import Together, together

ONE = [
    migrations.CreateModel("Shelf", [("id", models.BigAutoField(primary_key=True))]),
    migrations.CreateModel("Book", [("id", models.BigAutoField(primary_key=True))]),
]
MORE: list[Any] = [
    migrations.AddField("book", "pages", models.IntegerField(default=1)),
    migrations.AddField("book", "shelf", models.ForeignKey("pool.shelf", models.CASCADE)),
    migrations.AddIndex("book", models.Index(fields=["pages"], name="book_pages")),
    migrations.AddConstraint(
        "book", models.CheckConstraint(condition=models.Q(pages__gt=0), name="book_has_pages")
    ),
]


def begun() -> ProjectState:
    state = ProjectState()
    for one in ONE:
        one.state_forwards("pool", state)
    return state


def test_only_additions_that_follow_one_another_are_put_together() -> None:
    lone = migrations.AddField("shelf", "name", models.TextField())
    grouped = together([*ONE, *MORE, migrations.RunSQL("SELECT 1"), lone])
    assert [type(one) for one in grouped[:2]] == [migrations.CreateModel] * 2
    assert isinstance(grouped[2], Together)
    assert grouped[2].operations == MORE
    assert grouped[4] is lone


@pytest.mark.parametrize("rendered", [False, True])
def test_the_state_is_that_of_one_after_the_other(rendered: bool) -> None:
    each, at_once = begun(), begun()
    if rendered:
        assert each.apps
        assert at_once.apps
    for one in MORE:
        one.state_forwards("pool", each)
    Together(MORE).state_forwards("pool", at_once)
    assert at_once == each
    names = {field.name for field in at_once.apps.get_model("pool", "book")._meta.get_fields()}
    assert names == {"id", "pages", "shelf"}
    assert [field.name for field in at_once.apps.get_model("pool", "shelf")._meta.get_fields()] == [
        "book",
        "id",
    ]


@pytest.mark.django_db(transaction=True)
def test_the_table_gets_all_of_it_and_loses_it_again() -> None:
    state, done = begun(), begun()
    every = Together(MORE)
    every.state_forwards("pool", done)
    with connection.schema_editor() as editor:
        for one in ONE:
            one.database_forwards("pool", editor, ProjectState(), state)
        every.database_forwards("pool", editor, state, done)
    assert columns() == ["id", "pages", "shelf_id"]
    with connection.schema_editor() as editor:
        every.database_backwards("pool", editor, done, state)
        assert columns() == ["id"]
        for name in ("Book", "Shelf"):
            editor.delete_model(state.apps.get_model("pool", name))


def columns() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = 'pool_book' ORDER BY 1"
        )
        return [name for (name,) in cursor.fetchall()]
