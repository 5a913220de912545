"""JAX arrays in host memory, by pointer: a process of its own, as XLA is in torch_tpu as well."""

import subprocess
import sys
from pathlib import Path

from harness import Daemon, child

PROGRAM = """
import sys

import jax
import jax.numpy as jnp
import numpy as np

from harness import keys_of
from kvtier import Client, HostDevice

BLOCKS, PAGE = 16, (8, 128)
page_bytes = 4 * 8 * 128
pool = jax.random.uniform(jax.random.key(3), (BLOCKS, *PAGE)).block_until_ready()
saved = np.array(pool)


def submit(engine, job, direction, array, blocks, lease):
    # An array's memory stays where it is as long as the array lives; a step makes another array.
    array.block_until_ready()
    layout = engine.add_layout([(array.unsafe_buffer_pointer(), page_bytes, page_bytes)], BLOCKS, 1)
    engine.submit(job, direction, [layout], [len(blocks)], np.array(blocks, np.int64),
                  np.arange(len(blocks), dtype=np.int64), lease.refs)
    assert engine.wait([job], 30.0)
    assert [row[:2] for row in engine.poll()] == [(job, True)]


with Client.connect(sys.argv[1], deadline_ms=5000) as client:
    ns = client.namespace({"jax": "host memory"}, page_bytes)
    keys = keys_of("jax", 3)
    engine = client.copy_engine(1, device=HostDevice())
    write = ns.reserve_slots(keys)
    submit(engine, 1, "store", pool, [2, 3, 9], write)
    assert ns.commit_slots(write, wait=True)
    pool = jax.jit(lambda p: (p + 1.0).at[jnp.array([2, 3, 9])].set(-1.0))(pool)  # a step, which evicts them
    read = ns.lease_slots(keys)
    submit(engine, 2, "load", pool, [7, 0, 1], read)
    ns.release_slots(read)
    engine.close()

expected = saved + np.float32(1.0)
expected[[2, 3, 9]] = -1.0
expected[[7, 0, 1]] = saved[[2, 3, 9]]
assert np.array_equal(np.array(pool + 0.0), expected)  # computed, so read by JAX
print("equal")
"""


def test_blocks_of_a_jax_array_come_back(daemon: Daemon) -> None:
    with child(PROGRAM, daemon.address, JAX_PLATFORMS="cpu") as process:
        answer, _ = process.communicate(timeout=120)
        assert process.returncode == 0
    assert answer.split() == ["equal"]


def output_of(*command: object) -> str:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=120, check=True
    ).stdout


def test_nothing_leads_from_a_jax_array_to_its_pjrt_buffer() -> None:
    """Decision 0021. When this fails, arrays on other devices can perhaps be served."""
    import jaxlib

    program = "import jax; print(*(name for name in dir(jax.numpy.zeros(1)) if 'buffer' in name))"
    attributes = output_of(sys.executable, "-c", program).split()
    assert attributes == ["device_buffer", "device_buffers", "unsafe_buffer_pointer"]
    libraries = list(Path(jaxlib.__file__).parent.glob("*.so"))
    assert libraries
    for library in libraries:
        symbols = output_of("nm", "--dynamic", "--defined-only", library)
        assert not any(word in symbols for word in ("PyArray", "PjRtCApiBuffer", "PjRtBuffer")), library
