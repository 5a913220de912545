"""A real S3-compatible server of its own for tests, on a free port."""

import contextlib
import os
from collections.abc import Iterator

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "kvtier-test"


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """Serves with an empty bucket until it ends; the environment, also of child processes, points at it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "a-key-of-the-test",
        "AWS_SECRET_ACCESS_KEY": "a-secret-of-the-test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
        yield settings["AWS_ENDPOINT_URL"]
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        server.stop()
