"""How a page says to connect: the lines of each slice and share, what keeps it apart, and what that lacks."""

from __future__ import annotations

import pytest
from django.test import Client

from pool.models import Allocation, Gpu, Node, Reservation
from pool.models.reservations import SHARED
from tests.portal.web.people import page_of

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("sharing", "kept", "variable"),
    [
        ("mps", "Driver (MPS)", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=8192M"),
        ("hami", "Library (HAMi-core)", "CUDA_DEVICE_MEMORY_LIMIT=8192m"),
        ("timeslice", "None", ""),
    ],
)
def test_a_share_is_told_with_what_keeps_its_limits(
    active: Reservation, milos: Client, sharing: str, kept: str, variable: str
) -> None:
    Allocation.objects.update(
        kind="share",
        profile="",
        mig_uuid="",
        tenancy=SHARED,
        share_memory_mib=8192,
        share_compute_pct=20,
        share_limit_pct=20,
    )
    Gpu.objects.update(use="share", sharing=sharing)
    page = page_of(milos.get(f"/reservations/{active.pk}/"))
    assert "share of 8 GiB, 20 % compute" in page
    assert f"Kept apart by: {kept}" in page
    assert f"export {variable}" in page
    assert ("nothing keeps you, or the others on this GPU" in page) == (sharing == "timeslice")


@pytest.mark.parametrize("folder", ["", "/srv/gpupool"])
def test_files_for_holders_are_named_where_their_node_keeps_them(
    active: Reservation, milos: Client, folder: str
) -> None:
    share = {"kind": "share", "tenancy": SHARED, "share_memory_mib": 8192, "share_limit_pct": 20}
    Allocation.objects.update(**share, profile="", mig_uuid="", share_compute_pct=20)
    Gpu.objects.update(use="share", sharing="mps")
    Node.objects.update(run_folder=folder)
    uuid, where = Gpu.objects.order_by("index")[0].uuid, folder or "/run/gpupool"
    page = page_of(milos.get(f"/reservations/{active.pk}/"))
    assert f"export CUDA_MPS_PIPE_DIRECTORY={where}/mps/{uuid}/pipe" in page
    assert f"-v {where}/mps/{uuid}/pipe:{where}/mps/{uuid}/pipe" in page
    told = milos.get(f"/api/v1/reservations/{active.pk}").json()["allocations"][0]["env"]
    assert told["CUDA_MPS_PIPE_DIRECTORY"] == f"{where}/mps/{uuid}/pipe"


@pytest.mark.parametrize(
    ("access", "said"),
    [
        ("cdi", "--device gpupool.io/slice="),
        ("cdi", "Whoever may start containers with other devices can still get at other GPUs."),
        ("unix", "This holds for logins of your account"),
    ],
)
def test_where_others_are_kept_off_it_says_how_far(
    active: Reservation, milos: Client, access: str, said: str
) -> None:
    Node.objects.update(access=access)
    page = page_of(milos.get(f"/reservations/{active.pk}/"))
    assert said in page
    assert "Not enforced: this node" not in page
