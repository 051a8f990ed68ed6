"""Pools, nodes and GPUs, what a GPU shall look like and what it was last seen to be."""

from __future__ import annotations

from django.contrib.postgres.fields import IntegerRangeField
from django.db import models


class Pool(models.Model):
    """GPUs that are booked together.

    `change` is drawn under the lock on this row by every write that changes
    capacity, quota or grants, so it has no gaps: a decision taken at the same
    number still stands.

    The rest is policy (wire.Policy says what each means on a node): what is done
    at the end of a stay, about too much memory and about foreign processes; how
    many shares a GPU takes; after how long a lost GPU's bookings go elsewhere,
    and when a GPU that was faulty may come back by itself. `block_sizes` are the
    levels of its tree of blocks: how many nodes an aggregate has, smallest first.

    Of borrowing: what is recalled has `notice_seconds`, and at least `min_run_seconds`
    since its start. Above `approve_above_milli` a booking needs an approver; None: none does.
    `late_release_price`: unused hours given back late cost something. Past use counts half
    after `half_life_hours`. `defragment`: what is done with a plan for it.
    """

    class OverMemory(models.TextChoices):
        WARN = "warn"
        END = "end"

    class Defragment(models.TextChoices):
        OFF = "off"
        APPLY = "apply"

    class Foreign(models.TextChoices):
        LOOK = "look"
        LINE = "line"
        KILL = "kill"

    name = models.SlugField(max_length=63, unique=True)
    title = models.CharField(max_length=120, default="", blank=True)
    zone = models.CharField(max_length=64, default="UTC")
    change = models.BigIntegerField(default=0)
    frozen = models.BooleanField(default=False)
    scrub_seconds = models.PositiveIntegerField(default=0)
    may_kill = models.BooleanField(default=False)
    grace_seconds = models.PositiveIntegerField(default=60)
    over_memory = models.CharField(max_length=8, choices=OverMemory.choices, default=OverMemory.WARN)
    over_grace_seconds = models.PositiveIntegerField(default=300)
    foreign = models.CharField(max_length=8, choices=Foreign.choices, default=Foreign.LINE)
    terminal_lines = models.BooleanField(default=True)
    mps_multi_user = models.BooleanField(default=False)
    most_shares = models.PositiveSmallIntegerField(default=10)
    lost_minutes = models.PositiveIntegerField(default=15)
    auto_return = models.BooleanField(default=False)
    good_probes = models.PositiveSmallIntegerField(default=5)
    block_sizes = models.JSONField(default=list, blank=True)
    notice_seconds = models.PositiveIntegerField(default=300)
    min_run_seconds = models.PositiveIntegerField(default=600)
    approve_above_milli = models.PositiveIntegerField(null=True, blank=True)
    late_release_price = models.BooleanField(default=False)
    half_life_hours = models.PositiveIntegerField(default=168)
    defragment = models.CharField(max_length=8, choices=Defragment.choices, default=Defragment.OFF)
    version = models.PositiveIntegerField(default=1)

    def __str__(self) -> str:
        return self.name


class Node(models.Model):
    """A server with an agent. `received_at` is the portal's own clock, never the node's.

    `unknown_since` is set when three reports are missing and cleared by two good
    ones; `(boot_id, seq)` orders reports. `block` is the rack or block it stands in,
    "" if nobody said; `cpu_milli` and `memory_mib` are what it can give beside its
    GPUs, None where that is not known: then they are not looked at.
    """

    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="nodes")
    name = models.CharField(max_length=63, unique=True)
    machine_id = models.CharField(max_length=64)
    boot_id = models.CharField(max_length=64, default="", blank=True)
    seq = models.BigIntegerField(default=0)
    agent = models.CharField(max_length=32, default="", blank=True)
    wire = models.PositiveSmallIntegerField(default=0)
    driver = models.CharField(max_length=64, default="", blank=True)
    access = models.CharField(max_length=16, default="advisory")
    frozen = models.BooleanField(default=False)
    agent_frozen = models.BooleanField(default=False)
    received_at = models.DateTimeField(null=True, blank=True)
    good_reports = models.PositiveIntegerField(default=0)
    unknown_since = models.DateTimeField(null=True, blank=True)
    skew_ms = models.BigIntegerField(null=True, blank=True)
    dropped_values = models.BigIntegerField(default=0)
    broker_ok = models.BooleanField(default=False)
    broker_hash = models.CharField(max_length=64, default="", blank=True)
    managed_by = models.JSONField(default=list, blank=True)
    sharing_offered = models.JSONField(default=list, blank=True)
    access_offered = models.JSONField(default=list, blank=True)
    imex = models.CharField(max_length=32, default="", blank=True)
    #: Where the node keeps what holders need; "": at core.connect.RUN.
    run_folder = models.CharField(max_length=200, default="", blank=True)
    block = models.CharField(max_length=64, default="", blank=True)
    cpu_milli = models.PositiveIntegerField(null=True, blank=True)
    memory_mib = models.PositiveIntegerField(null=True, blank=True)
    exporter_port = models.PositiveIntegerField(null=True, blank=True)
    dropped_reports = models.BigIntegerField(default=0)
    happened_n = models.BigIntegerField(default=0)
    version = models.PositiveIntegerField(default=1)

    class Meta:
        constraints = [
            models.CheckConstraint(
                condition=models.Q(name__regex=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"),
                name="node_name_fits_an_acl",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class NodeToken(models.Model):
    """What an agent shows at the reports' door; random enough for a plain SHA-256."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="tokens")
    public_id = models.CharField(max_length=16, unique=True)
    secret_hash = models.CharField(max_length=64)
    created_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)


class JoinCode(models.Model):
    """Lets one node of one name join one pool, once."""

    pool = models.ForeignKey(Pool, on_delete=models.CASCADE)
    name = models.CharField(max_length=63)
    code_hash = models.CharField(max_length=64, unique=True)
    created_by = models.ForeignKey("pool.User", null=True, on_delete=models.SET_NULL)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)


class Gpu(models.Model):
    """A GPU as inventory: what it is, what it may be used for, what it shall look like.

    `profiles` holds the offers of the last report (wire.Offer as JSON), None
    before any. `wanted` is the layout of `generation` (wire.Layout as JSON).
    A booking locks the pool and this row; live readings are in GpuState.
    `sharing` is how shares are kept apart while `use` is share; `auto`: whatever is asked. `excluded`: an
    operator has taken it from the node's other manager (`Node.managed_by`).
    `reset` is wire.Layout.reset; `links` are wire.Link as JSON.
    """

    class Use(models.TextChoices):
        MIG = "mig"
        WHOLE = "whole"
        SHARE = "share"
        AUTO = "auto"

    class Sharing(models.TextChoices):
        MPS = "mps"
        HAMI = "hami"
        TIMESLICE = "timeslice"

    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="gpus")
    index = models.PositiveSmallIntegerField()
    uuid = models.CharField(max_length=64, unique=True)
    name = models.CharField(max_length=96)
    model = models.CharField(max_length=64)
    pci_bus_id = models.CharField(max_length=32, default="", blank=True)
    memory_mib = models.PositiveIntegerField(null=True, blank=True)
    grid = models.PositiveSmallIntegerField(default=1)
    mig_capable = models.BooleanField(null=True)
    profiles = models.JSONField(null=True, blank=True)
    use = models.CharField(max_length=8, choices=Use.choices, default=Use.WHOLE)
    sharing = models.CharField(max_length=12, choices=Sharing.choices, default="", blank=True)
    managed = models.BooleanField(default=False)
    excluded = models.BooleanField(default=False)
    frozen = models.BooleanField(default=False)
    retired_at = models.DateTimeField(null=True, blank=True)
    fabric_cluster = models.CharField(max_length=64, default="", blank=True)
    fabric_clique = models.IntegerField(null=True, blank=True)
    numa = models.SmallIntegerField(null=True, blank=True)
    links = models.JSONField(null=True, blank=True)
    reset = models.PositiveIntegerField(default=0)
    generation = models.BigIntegerField(default=0)
    wanted = models.JSONField(null=True, blank=True)

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(grid__gte=1), name="gpu_grid_positive"),
            models.CheckConstraint(
                condition=~models.Q(use="share") | ~models.Q(sharing=""), name="gpu_sharing_is_named"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node.name}/{self.index}"


class GpuState(models.Model):
    """The last observation of a GPU; no booking locks it.

    `instances` None: not known; []: none. `generation` is the newest that the
    agent applied and read back. `readings` holds core.health.Reading by name,
    `shares` wire.ShareSeen, `health` the rest of a wire.GpuReport that tells how
    the card is (clocks, throttle, ecc, remapped, fabric, compute mode, reset).
    """

    gpu = models.OneToOneField(Gpu, on_delete=models.CASCADE, primary_key=True, related_name="state")
    mig = models.BooleanField(null=True)
    mig_pending = models.BooleanField(null=True)
    instances = models.JSONField(null=True, blank=True)
    processes = models.JSONField(null=True, blank=True)
    generation = models.BigIntegerField(default=0)
    held = models.JSONField(default=list)
    trouble = models.JSONField(null=True, blank=True)
    lost = models.BooleanField(default=False)
    readings = models.JSONField(default=dict)
    shares = models.JSONField(default=list)
    health = models.JSONField(default=dict)
    sampled_at = models.DateTimeField(null=True, blank=True)
    received_at = models.DateTimeField(null=True, blank=True)


class Blocker(models.Model):
    """What physically occupies a GPU without being an allocation: masked by placement."""

    class Kind(models.TextChoices):
        OVERRUN = "overrun"
        FOREIGN = "foreign"
        UNKNOWN = "unknown"
        HEALTH = "health"

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="blockers")
    span = IntegerRangeField()
    since = models.DateTimeField()
    kind = models.CharField(max_length=8, choices=Kind.choices)
    detail = models.CharField(max_length=200, default="", blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["gpu", "span", "kind"], name="blocker_once"),
        ]


class GpuMark(models.Model):
    """That a transaction changed what placement knows of a GPU; kept by triggers (migration 0003).

    `card`: what it is itself, else what is on it. `xid` is the transaction's number. Whoever
    has read at a snapshot (pg_snapshot) has to read again what is marked by a transaction
    that it does not contain. The newest mark of each kind replaces those before it. Plain
    ids: that a GPU has gone is a change, too.
    """

    pool_id = models.BigIntegerField()
    gpu_id = models.BigIntegerField()
    xid = models.BigIntegerField()
    card = models.BooleanField()

    class Meta:
        indexes = [models.Index(fields=["pool_id", "xid"], name="gpu_mark_since")]
        constraints = [
            models.UniqueConstraint(fields=["gpu_id", "pool_id", "card", "xid"], name="gpu_mark_once"),
        ]


class PoolMix(models.Model):
    """What a pool is usually asked for, as it was learnt `at` that time (core.mix.Mix as JSON)."""

    pool = models.OneToOneField(Pool, on_delete=models.CASCADE, primary_key=True, related_name="mix")
    mix = models.JSONField()
    at = models.DateTimeField()
