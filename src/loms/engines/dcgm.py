"""NVIDIA's DCGM exporter: what GPUs say of themselves (DCGM 3.3 to 4.8). A device, no engine.

Known by its families ``DCGM_FI_…``. DCGM 4.6 renamed fields; the exporter goes on under the old names, but a field
list of one's own may bring the new ones. ``DCGM_FI_DEV_GPU_UTIL_RATIO`` is not taken: it is a percentage in DCGM 4.6
and a share in 4.7. On MIG the utilisation of the whole GPU is missing or 0, so an instance's is the share of time in
which its engines were active. What is named BYTES is a rate, the XID gauge holds the code of the last error and is no
count, and what is named PERCENT lies between 0 and 1. The framebuffer's size is used + free + reserved where the
exporter does not tell it. ``gpu`` becomes ``device_index``, ``UUID`` becomes ``device_id``; pod, namespace and
container stay as the exporter has them. Source: NVIDIA, "DCGM Exporter Metrics" and "Field Identifiers".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from loms.engines.engine import Engine, Row, engines

_MIB = 1048576
_PROFILING = "needs a data-centre GPU whose profiling fields can be read"
_RATE = "a rate of bytes, not how many have moved"
_PART = "a part of the GPU that serves no language model"
_SHARE = "the busy share of one part of the chip"
_WINDOW = "counts over a sliding window, which can fall"

_TABLE = (
    Row(
        "hw.gpu.utilization",
        (
            'DCGM_FI_DEV_GPU_UTIL{GPU_I_ID=""} * 0.01',
            'DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID=""}',
            'DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{GPU_I_ID=""}',
        ),
    ),
    Row(
        "hw.gpu.utilization",
        ('DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID!=""}', 'DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO{GPU_I_ID!=""}'),
    ),
    Row("hw.gpu.memory.usage", (f"DCGM_FI_DEV_FB_USED * {_MIB}", "DCGM_FI_DEV_FB_USED_BYTES")),
    Row(
        "hw.gpu.memory.limit",
        (
            f"DCGM_FI_DEV_FB_TOTAL * {_MIB}",
            "DCGM_FI_DEV_FB_CAPACITY_BYTES",
            f"DCGM_FI_DEV_FB_USED * {_MIB} + DCGM_FI_DEV_FB_FREE * {_MIB} + DCGM_FI_DEV_FB_RESERVED * {_MIB}",
        ),
        absent="needs DCGM_FI_DEV_FB_TOTAL, or DCGM_FI_DEV_FB_RESERVED beside used and free",
    ),
    Row(
        "hw.gpu.memory.utilization",
        (
            "DCGM_FI_DEV_FB_USED_PERCENT",
            "DCGM_FI_DEV_FB_USED_RATIO",
            "DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_TOTAL",
            "DCGM_FI_DEV_FB_USED_BYTES / DCGM_FI_DEV_FB_CAPACITY_BYTES",
        ),
        absent="the exporter's default fields lack it; it is memory.usage over memory.limit",
    ),
    Row("hw.power", ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS")),
    Row("hw.energy", ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION * 0.001", "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL")),
    Row(
        "hw.temperature",
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
        fixed={"hw_sensor_location": "gpu"},
    ),
    Row(
        "hw.temperature",
        ("DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS"),
        fixed={"hw_sensor_location": "memory"},
    ),
    Row(
        "hw.errors",
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL"),
        fixed={"error_type": "pcie_replay"},
    ),
    Row(
        "hw.errors",
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"),
        fixed={"error_type": "uncorrectable_remapped_row"},
    ),
    Row(
        "hw.errors",
        ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL"),
        fixed={"error_type": "correctable_remapped_row"},
    ),
    Row("hw.errors", ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",), fixed={"error_type": "ecc_double_bit"}),
    Row("hw.errors", ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",), fixed={"error_type": "ecc_single_bit"}),
    Row(
        "llm.gpu.tensor.utilization",
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_PROF_TENSOR_UTIL_RATIO"),
        absent=_PROFILING,
    ),
    Row(
        "llm.gpu.memory.bandwidth.utilization",
        ("DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_DRAM_UTIL_RATIO"),
        absent=_PROFILING,
    ),
)


@engines.register("dcgm")
class Dcgm(Engine):
    """The exporter's ``/metrics``, port 9400."""

    prefix: ClassVar[str] = "DCGM_"
    device: ClassVar[bool] = True
    rename: ClassVar[Mapping[str, str]] = {
        "gpu": "device_index",
        "Hostname": "hostname",
        "modelName": "device_model",
        "DCGM_FI_DRIVER_VERSION": "driver_version",
        "GPU_I_ID": "gpu_instance_id",
        "GPU_I_PROFILE": "gpu_instance_profile",
    }
    table: ClassVar[tuple[Row, ...]] = _TABLE
    never: ClassVar[Mapping[str, str]] = {
        "hw.gpu.io": "DCGM tells at which rate bytes move, not how many have moved",
    }
    aside: ClassVar[Mapping[str, str]] = {
        "DCGM_FI_DEV_GPU_UTIL_RATIO": "a percentage in DCGM 4.6 and a share in 4.7",
        "DCGM_FI_DEV_SM_CLOCK*": "a frequency",
        "DCGM_FI_DEV_MEM_CLOCK*": "a frequency",
        "DCGM_FI_DEV_MEM_COPY_UTIL*": "the memory controller's busy share in percent; DRAM_ACTIVE tells it better",
        "DCGM_FI_DEV_ENC_UTIL*": _PART,
        "DCGM_FI_DEV_DEC_UTIL*": _PART,
        "DCGM_FI_DEV_XID_ERROR*": "the code of the last error, not a count",
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": "a state",
        "DCGM_FI_DEV_ROW_REMAP_FAILED": "a state",
        "DCGM_FI_DEV_ROW_REMAP_PENDING": "a state",
        "DCGM_FI_DEV_VGPU_*": "about licences of virtual GPUs",
        "DCGM_FI_DEV_NVLINK_*": "in units that depend on the driver, or about single lanes",
        "DCGM_FI_PROF_PCIE_*": _RATE,
        "DCGM_FI_PROF_NVLINK_*": _RATE,
        "DCGM_FI_PROF_SM_*": _SHARE,
        "DCGM_FI_PROF_PIPE_FP*": _SHARE,
        "DCGM_FI_PROF_FP*": _SHARE,
        "DCGM_EXP_*": _WINDOW,
    }
