"""HAMi-core's folders and the one name of its library; a real library stands in for it."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from agents.gpu import DriverRefusal
from agents.hami import Hami
from agents.place import Place
from pool.core import connect
from pool.core.wire import Held


def share(allocation: str, *users: str) -> Held:
    return Held(allocation=allocation, owner="o", profile=None, profile_id=None, start=0, size=8, users=users)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    one = Place(tmp_path)
    library = one.root / "usr/local/vgpu/libvgpu.so"
    library.parent.mkdir(parents=True)
    lines = Path("/proc/self/maps").read_text().splitlines()
    shutil.copy(next(line.split()[-1] for line in lines if "/libm" in line and ".so" in line), library)
    return one


def folder(place: Place, allocation: str) -> Path:
    return Path(connect.cache(allocation, str(place.run)))


class TestFolders:
    def test_nothing_stands_before_it_was_brought(self, place: Place) -> None:
        hami = Hami(place)
        assert hami.works()
        assert not hami.stands("a")
        hami.bring(share("a"))
        assert hami.stands("a")

    def test_the_list_for_containers_names_the_library(self, place: Place) -> None:
        Hami(place).bring(share("a"))
        named = Path((place.run / connect.PRELOAD).read_text().strip())
        assert named.samefile(place.root / "usr/local/vgpu/libvgpu.so")

    def test_a_library_that_moved_is_followed(self, place: Place) -> None:
        Hami(place).bring(share("a"))
        moved = place.root / "usr/lib/gpupool/libvgpu.so"
        moved.parent.mkdir(parents=True)
        (place.root / "usr/local/vgpu/libvgpu.so").rename(moved)
        assert not Hami(place).stands("a")
        Hami(place).bring(share("a"))
        assert (place.run / connect.LIBRARY).samefile(moved)

    def test_turns_are_taken_in_a_folder_for_all(self, place: Place) -> None:
        Hami(place).bring(share("a"))
        assert stat.S_IMODE((place.root / "tmp/vgpulock").stat().st_mode) == 0o1777

    @pytest.mark.skipif(os.getuid() != 0, reason="needs root: folders of other accounts")
    def test_a_link_in_its_place_is_not_followed(self, place: Place) -> None:
        elsewhere = place.root / "etc"
        elsewhere.mkdir(mode=0o755)
        (place.root / "tmp").mkdir(exist_ok=True)
        (place.root / "tmp/vgpulock").symlink_to(elsewhere)
        with pytest.raises(DriverRefusal):
            Hami(place).bring(share("a"))
        assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755

    def test_a_folder_is_its_holders_alone(self, place: Place) -> None:
        Hami(place).bring(share("a", "daemon"))
        assert folder(place, "a").owner() == "daemon"
        assert stat.S_IMODE(folder(place, "a").stat().st_mode) == 0o700
        assert stat.S_IMODE(folder(place, "a").parent.stat().st_mode) == 0o711

    def test_several_accounts_share_a_folder_that_others_cannot_list(self, place: Place) -> None:
        Hami(place).bring(share("a", "daemon", "nobody"))
        assert stat.S_IMODE(folder(place, "a").stat().st_mode) == 0o777

    def test_dropping_twice_is_harmless(self, place: Place) -> None:
        hami = Hami(place)
        hami.bring(share("a"))
        hami.drop("a")
        hami.drop("a")
        assert not hami.stands("a")

    def test_without_the_library_there_is_nothing_to_bring(self, tmp_path: Path) -> None:
        hami = Hami(Place(tmp_path))
        assert not hami.works()
        with pytest.raises(DriverRefusal, match="not installed"):
            hami.bring(share("a"))
