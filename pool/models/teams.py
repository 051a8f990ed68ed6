"""People, service accounts and the tree of teams."""

from __future__ import annotations

from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.db import models


class User(AbstractUser):
    """A person, or a service account that a team owns.

    `roles` are global ones (core.roles.GlobalRole); team roles are in Membership.
    `zone` is an IANA name; empty means the team's or, without one, UTC.
    `posix_name` is the account on the GPU nodes, empty: not known there.
    """

    class Kind(models.TextChoices):
        PERSON = "person"
        SERVICE = "service"

    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.PERSON)
    roles = ArrayField(models.CharField(max_length=16), default=list, blank=True)
    zone = models.CharField(max_length=64, default="", blank=True)
    language = models.CharField(max_length=16, default="", blank=True)
    posix_name = models.CharField(max_length=64, default="", blank=True)

    class Meta(AbstractUser.Meta):
        constraints = [
            models.CheckConstraint(
                condition=models.Q(roles__contained_by=["operator", "approver", "admin"]),
                name="user_roles_known",
            ),
        ]


class Team(models.Model):
    """`posix_name` is the team's service account on the GPU nodes, empty: none."""

    name = models.SlugField(max_length=63, unique=True)
    title = models.CharField(max_length=120, default="", blank=True)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    zone = models.CharField(max_length=64, default="UTC")
    posix_name = models.CharField(max_length=64, default="", blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(parent__isnull=True) | ~models.Q(parent=models.F("id")),
                name="team_not_its_own_parent",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """A role in a team, valid for its subteams too."""

    class Role(models.TextChoices):
        MEMBER = "member"
        LEAD = "lead"

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=8, choices=Role.choices)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "user"], name="membership_once"),
        ]
