"""Child process: owns a store on inherited descriptors, serves one ring until stdin ends."""

import sys

from native_host import BOOT_ID, wait_populated

import tpu_sync_native as native


def main() -> None:
    data_fd, meta_fd, doorbell_fd, ring_fd, dram_bytes = map(int, sys.argv[1:])
    store = native.Store(
        data_fd=data_fd, meta_fd=meta_fd, doorbell_fd=doorbell_fd, dram_bytes=dram_bytes, boot_id=BOOT_ID
    )
    store.start()
    wait_populated(store)
    assert store.open_namespace(bytes(16), 4096) == 0
    store.open_session(1, 1, 0, ring_fd)
    print("ready", flush=True)
    sys.stdin.read()
    store.stop()


if __name__ == "__main__":
    main()
