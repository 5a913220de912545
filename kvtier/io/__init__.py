"""The outside world: shared memory files, descriptors over sockets, processes, the native module."""
