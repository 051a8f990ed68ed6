"""What holders are told to set: the right slice, the limits, and what they must leave alone."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from pool.core.connect import Isolation, Part, connect, denied, isolation, limits, undoes
from pool.core.wire import Share

GPU, OTHER = "GPU-1", "GPU-2"
WHOLE = Part("a-1", "r-1", GPU)
MIG = replace(WHOLE, mig_uuid="MIG-1")
ONLINE = Share(memory_mib=20480, compute_pct=30, limit_pct=30)
BATCH = Share(memory_mib=8192, compute_pct=0, limit_pct=100, batch=True)
MPS = replace(WHOLE, share=ONLINE, sharing="mps")
HAMI = replace(WHOLE, share=ONLINE, sharing="hami")
TURNS = replace(WHOLE, share=ONLINE, sharing="timeslice")


@pytest.mark.parametrize(
    ("part", "kept_by"),
    [
        (WHOLE, Isolation.HARDWARE),
        (MIG, Isolation.HARDWARE),
        (MPS, Isolation.DRIVER),
        (replace(MPS, multi_user=True), Isolation.DRIVER_SHARED_USER),
        (HAMI, Isolation.LIBRARY),
        (TURNS, Isolation.NONE),
    ],
)
def test_the_isolation_is_what_really_keeps_holders_apart(part: Part, kept_by: Isolation) -> None:
    assert isolation(part) is kept_by


class TestLimits:
    def test_an_mps_share_sets_its_memory_its_threads_and_where_the_daemon_listens(self) -> None:
        assert limits(MPS) == {
            "CUDA_MPS_PIPE_DIRECTORY": "/run/gpupool/mps/GPU-1/pipe",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
        }

    def test_a_batch_share_yields_under_both(self) -> None:
        assert limits(replace(MPS, share=BATCH))["CUDA_MPS_CLIENT_PRIORITY"] == "1"
        hami = limits(replace(HAMI, share=BATCH))
        assert hami["CUDA_TASK_PRIORITY"] == "1"
        assert hami["GPU_CORE_UTILIZATION_POLICY"] == "default"

    def test_a_hami_share_loads_the_library_and_counts_in_its_own_file(self) -> None:
        found = limits(HAMI, "/elsewhere")
        assert found["LD_PRELOAD"] == "/elsewhere/hami/libvgpu.so"
        assert found["CUDA_DEVICE_MEMORY_LIMIT"] == found["CUDA_DEVICE_MEMORY_LIMIT_0"] == "20480m"
        assert found["CUDA_DEVICE_SM_LIMIT"] == found["CUDA_DEVICE_SM_LIMIT_0"] == "30"
        assert found["CUDA_DEVICE_MEMORY_SHARED_CACHE"].startswith("/elsewhere/hami/a-1/")
        assert found["GPU_CORE_UTILIZATION_POLICY"] == "force"

    def test_another_limit_counts_in_another_file(self) -> None:
        smaller = replace(HAMI, share=BATCH)
        name = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
        assert limits(smaller)[name] != limits(HAMI)[name]

    @pytest.mark.parametrize("part", [WHOLE, MIG, TURNS])
    def test_nothing_else_has_limits_to_set(self, part: Part) -> None:
        assert limits(part) == {}


class TestDenied:
    def test_what_would_undo_a_limit_is_named(self) -> None:
        names = denied([HAMI])
        assert {"CUDA_DISABLE_CONTROL", "LD_PRELOAD", "CUDA_DEVICE_*", "NVIDIA_VISIBLE_DEVICES"} <= set(names)
        assert "CUDA_MPS_*" in denied([MPS])

    def test_an_instance_has_no_limit_that_could_be_undone(self) -> None:
        assert denied([MIG]) == ("NVIDIA_IMEX_CHANNELS", "NVIDIA_VISIBLE_DEVICES")

    def test_a_prefix_covers_its_variables(self) -> None:
        assert undoes("CUDA_DEVICE_MEMORY_LIMIT", "hami")
        assert undoes("CUDA_MPS_PIPE_DIRECTORY", "mps")
        assert not undoes("CUDA_VISIBLE_DEVICES", "hami")
        assert not undoes("LD_PRELOAD", "mps")


class TestConnect:
    def test_whole_gpus_are_used_together(self) -> None:
        (one,) = connect([WHOLE, Part("a-2", "r-1", OTHER)], "cdi")
        assert ("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2") in one.environment
        assert one.devices == ("gpupool.io/slice=a-1", "gpupool.io/slice=a-2")
        assert one.docker.count("--device") == 2

    def test_each_instance_stands_alone(self) -> None:
        both = connect([MIG, replace(MIG, allocation="a-2", mig_uuid="MIG-2")], "advisory")
        assert [dict(one.environment)["CUDA_VISIBLE_DEVICES"] for one in both] == ["MIG-1", "MIG-2"]

    def test_the_lines_say_for_whom_a_process_runs(self) -> None:
        (one,) = connect([MIG], "unix")
        assert ("GPUPOOL_RESERVATION", "r-1") in one.environment
        assert ("GPUPOOL_ALLOCATION", "a-1") in one.environment

    def test_advice_enforces_nothing(self) -> None:
        assert not connect([WHOLE], "advisory")[0].enforced
        assert connect([WHOLE], "cdi")[0].enforced
        assert connect([WHOLE], "unix")[0].enforced

    def test_time_slicing_limits_nothing(self) -> None:
        assert not connect([TURNS], "cdi")[0].limited
        assert connect([MPS], "advisory")[0].limited

    def test_only_cdi_has_devices(self) -> None:
        assert connect([WHOLE], "unix")[0].devices == ()

    def test_a_container_on_mps_meets_its_server(self) -> None:
        words = shlex.split(connect([MPS], "advisory")[0].docker)
        assert "--ipc=host" in words
        assert "/run/gpupool/mps/GPU-1/pipe:/run/gpupool/mps/GPU-1/pipe" in words
        assert '"device=GPU-1"' in words

    def test_a_container_on_hami_loads_the_library_whatever_its_holder_sets(self) -> None:
        words = shlex.split(connect([HAMI], "advisory")[0].docker)
        assert "/run/gpupool/hami/ld.so.preload:/etc/ld.so.preload:ro" in words
        assert "CUDA_DEVICE_SM_LIMIT=30" in words

    def test_nothing_held_is_nothing_to_connect_to(self) -> None:
        assert connect([], "advisory") == ()


class TestChannel:
    def test_gpus_of_several_nodes_name_their_channel(self) -> None:
        (one,) = connect(
            [replace(WHOLE, imex=7), replace(WHOLE, allocation="a-2", gpu=OTHER, imex=7)], "unix"
        )
        assert one.channel == "/dev/nvidia-caps-imex-channels/channel7"
        assert ("NVIDIA_IMEX_CHANNELS", "7") in one.environment
        assert "-e NVIDIA_IMEX_CHANNELS=7" in one.docker

    def test_a_cdi_device_has_it_already(self) -> None:
        (one,) = connect([replace(WHOLE, imex=7)], "cdi")
        assert "IMEX" not in one.docker

    def test_without_one_nothing_is_said_of_it(self) -> None:
        (one,) = connect([WHOLE], "advisory")
        assert one.channel == ""
        assert "IMEX" not in one.docker + str(one.environment)
