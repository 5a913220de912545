"""What this build believes about the PJRT C API against a published table of it."""

import ctypes

import pypjrt._abi
import pytest

from tpu_sync_native import _core

PUBLISHED, _ = pypjrt._abi.load(0, 114)
ABI = _core.pjrt_abi()


def faults(structs: dict, slots: dict) -> list[str]:
    """Where the two differ."""
    found = []
    for name, (struct_size, size, fields) in structs.items():
        theirs = getattr(PUBLISHED, name)
        if struct_size != getattr(PUBLISHED, f"{name}_STRUCT_SIZE"):
            found.append(f"{name} says it has {struct_size} bytes")
        if size != ctypes.sizeof(theirs):
            found.append(f"{name} has {size} bytes")
        published = [name for name, *_ in theirs._fields_]
        if list(fields) != published:
            found.append(f"{name} has members {list(fields)}, published are {published}")
            continue
        for field, (offset, bytes_) in fields.items():
            member = getattr(theirs, field)
            if (offset, bytes_) != (member.offset, member.size):
                found.append(f"{name}.{field} at {offset} with {bytes_} bytes")
    for name, (offset, bytes_) in slots.items():
        if (offset, bytes_) != (PUBLISHED.VTABLE_OFFSET + 8 * PUBLISHED.SLOT[name], 8):
            found.append(f"slot {name} at {offset}")
    return found


def test_every_struct_and_slot_is_as_published() -> None:
    assert len(ABI["structs"]) == 23
    assert len(ABI["slots"]) == 13
    assert faults(ABI["structs"], ABI["slots"]) == []
    assert ABI["raw_buffer_extension_type"] == PUBLISHED.PJRT_Extension_Type_RawBuffer


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("PJRT_Event_OnReady_Args", "callback", (32, 8)),
        ("PJRT_RawBuffer_CopyRawHostToDevice_Args", "offset", (32, 4)),
        ("PJRT_Client_DmaMap_Args", "surprise", (40, 8)),
    ],
)
def test_a_planted_drift_is_caught(name: str, field: str, value: tuple[int, int]) -> None:
    struct_size, size, fields = ABI["structs"][name]
    assert len(faults({name: (struct_size, size, {**fields, field: value})}, {})) == 1


def test_a_planted_slot_is_caught() -> None:
    assert faults({}, {"PJRT_Client_DmaMap": (40 + 8 * 109, 8)}) == ["slot PJRT_Client_DmaMap at 912"]
