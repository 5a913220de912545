"""What lies below a storage root, read by tools: without a daemon, without writing, following no link.

docs/formats/segment.md describes the files.
"""
