"""Operations of a migration that are done together, because the state of all models is then rendered once.

Django renders it again after each of them, with all that is related: of a hundred added
columns that takes longer than all statements to the database. What is done is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from django.db.migrations.operations import AddConstraint, AddField, AddIndex
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

#: What only adds to models that are there.
_ADDING = (AddField, AddIndex, AddConstraint)


class Together(Operation):
    """These additions, in this order, seen by the database as they are after all of them."""

    def __init__(self, operations: Sequence[Any]) -> None:
        self.operations = operations
        self.reversible = all(one.reversible for one in operations)

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return self.__class__.__name__, [self.operations], {}

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        rendered = state.__dict__.pop("apps", None)
        for one in self.operations:
            one.state_forwards(app_label, state)
        if rendered is not None:
            state.__dict__["apps"] = rendered
            state.reload_models({(app_label, one.model_name_lower) for one in self.operations}, delay=False)

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        for one in self.operations:
            one.database_forwards(app_label, schema_editor, from_state, to_state)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: ProjectState, to_state: ProjectState
    ) -> None:
        for one in reversed(self.operations):
            one.database_backwards(app_label, schema_editor, from_state, to_state)

    def references_model(self, name: str, app_label: str) -> bool:
        return any(one.references_model(name, app_label) for one in self.operations)

    def describe(self) -> str:
        return "; ".join(one.describe() for one in self.operations)


def together(operations: Sequence[Any]) -> list[Any]:
    """The same, with what adds to models and follows one another in one."""
    return list(_grouped(operations))


def _grouped(operations: Sequence[Any]) -> Iterator[Any]:
    for adds, some in groupby(operations, lambda one: isinstance(one, _ADDING)):
        each = list(some)
        if adds and len(each) > 1:
            yield Together(each)
        else:
            yield from each
