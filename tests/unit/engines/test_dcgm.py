from __future__ import annotations

from pathlib import Path

import pytest

FIRST = "GPU-5fd4f087-86f3-7a43-b711-4771313afc50"


def gauge(name: str, *samples: tuple[str, float]) -> str:
    return f"# TYPE {name} gauge\n" + "".join(f"{name}{{{labels}}} {value}\n" for labels, value in samples)


def test_the_story(scraped, data: Path) -> None:
    """tests/data/written/README.md; the exporter is never asked who it is, and needs not be."""
    target = scraped()
    target.scrape((data / "written" / "dcgm-4.5.3.txt").read_bytes())
    told = {
        "hw_gpu_utilization_ratio": (0.87, 0.0),
        "hw_gpu_memory_usage_bytes": (60000 * 2**20, 4 * 2**20),
        "hw_gpu_memory_limit_bytes": (81559 * 2**20, 81559 * 2**20),
        "hw_power_watts": (350.5, 70.25),
        "hw_energy_joules_total": (1_234_567.0, 250_000.0),
        "llm_gpu_tensor_utilization_ratio": (0.33, 0.0),
        "llm_gpu_memory_bandwidth_utilization_ratio": (0.55, 0.0),
    }
    for name, (first, second) in told.items():
        assert target.value(name, device_index="0", device_id=FIRST, hostname="gpu-node-1") == pytest.approx(first)
        assert target.value(name, device_index="1") == pytest.approx(second)
    assert target.value("hw_temperature_celsius", device_index="0", hw_sensor_location="gpu") == 65
    assert target.value("hw_temperature_celsius", device_index="0", hw_sensor_location="memory") == 58
    assert target.value("hw_errors_total", device_index="0", error_type="pcie_replay") == 0
    assert target.plan.unmapped == ()
    assert "llm_engine_info" not in target.names()
    assert not any({"hop", "model", "gpu", "UUID", "Hostname"} & dict(labels).keys() for _, labels in target.values)


def test_rates_and_the_last_error_code_are_not_counters(scraped, data: Path) -> None:
    target = scraped()
    target.scrape((data / "written" / "dcgm-4.5.3.txt").read_bytes())
    assert "hw_gpu_io_bytes_total" not in target.names()
    assert "rate" in target.plan.unavailable["hw_gpu_io_bytes_total"]
    errors = {dict(labels)["error_type"] for name, labels in target.values if name == "hw_errors_total"}
    assert errors == {"pcie_replay", "correctable_remapped_row", "uncorrectable_remapped_row"}


def test_mig_instances_are_told_by_their_engines_activity(scraped) -> None:
    """GPU 0 is whole; GPU 1 has two instances, of which GPU_UTIL says 0 or nothing."""
    one, two = 'gpu="1",GPU_I_ID="7",GPU_I_PROFILE="1g.10gb"', 'gpu="1",GPU_I_ID="8",GPU_I_PROFILE="1g.10gb"'
    target = scraped()
    target.scrape(
        gauge("DCGM_FI_DEV_GPU_UTIL", ('gpu="0"', 50), (one, 0))
        + gauge("DCGM_FI_PROF_GR_ENGINE_ACTIVE", ('gpu="0"', 0.4), (one, 0.9), (two, 0.3))
    )
    assert target.value("hw_gpu_utilization_ratio", device_index="0") == 0.5
    assert target.value("hw_gpu_utilization_ratio", device_index="1", gpu_instance_id="7") == 0.9
    assert target.value("hw_gpu_utilization_ratio", gpu_instance_id="8", gpu_instance_profile="1g.10gb") == 0.3
    assert len(target.values) == 3


def test_names_of_dcgm_4_6(scraped) -> None:
    labels = 'gpu="0",hostname="n",pod="p",namespace="s",container="c"'
    target = scraped()
    target.scrape(
        gauge("DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", (labels, 0.25))
        + gauge("DCGM_FI_DEV_GPU_UTIL_RATIO", (labels, 25))
        + gauge("DCGM_FI_DEV_BOARD_POWER_WATTS", (labels, 300))
        + gauge("DCGM_FI_DEV_GPU_TEMP_CELSIUS", (labels, 60))
        + gauge("DCGM_FI_PROF_TENSOR_UTIL_RATIO", (labels, 0.1))
        + gauge("DCGM_FI_PROF_DRAM_UTIL_RATIO", (labels, 0.2))
        + gauge("DCGM_FI_DEV_FB_USED", (labels, 10))
        + gauge("DCGM_FI_DEV_FB_TOTAL", (labels, 40))
        + "# TYPE DCGM_FI_DEV_PCIE_REPLAY_TOTAL counter\n"
        + f"DCGM_FI_DEV_PCIE_REPLAY_TOTAL{{{labels}}} 3\n"
    )
    kept = {"hostname": "n", "pod": "p", "namespace": "s", "container": "c"}
    assert target.value("hw_gpu_utilization_ratio", **kept) == 0.25
    assert target.value("hw_power_watts", **kept) == 300
    assert target.value("hw_temperature_celsius", **kept) == 60
    assert target.value("llm_gpu_tensor_utilization_ratio", **kept) == 0.1
    assert target.value("llm_gpu_memory_bandwidth_utilization_ratio", **kept) == 0.2
    assert target.value("hw_gpu_memory_limit_bytes", **kept) == 40 * 2**20
    assert target.value("hw_gpu_memory_utilization_ratio", **kept) == 0.25
    assert target.value("hw_errors_total", error_type="pcie_replay", **kept) == 3
    assert target.plan.unmapped == ()


def test_old_and_new_names_side_by_side_are_told_once(scraped) -> None:
    target = scraped()
    target.scrape(
        gauge("DCGM_FI_DEV_POWER_USAGE", ('gpu="0"', 300)) + gauge("DCGM_FI_DEV_BOARD_POWER_WATTS", ('gpu="0"', 301))
    )
    assert target.value("hw_power_watts") == 300


def test_without_the_reserved_part_the_size_is_not_known(scraped) -> None:
    target = scraped()
    target.scrape(gauge("DCGM_FI_DEV_FB_USED", ('gpu="0"', 10)) + gauge("DCGM_FI_DEV_FB_FREE", ('gpu="0"', 30)))
    assert "hw_gpu_memory_limit_bytes" not in target.names()
    assert "FB_RESERVED" in target.plan.unavailable["hw_gpu_memory_limit_bytes"]
