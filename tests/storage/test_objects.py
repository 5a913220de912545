"""Object stores: roots that cannot be used, stores that fail, Python that misbehaves."""

import contextlib
import errno
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import boto3
import pytest
from s3_server import BUCKET, s3_server

from kvtier.io import native, objects
from kvtier.io.objects import ObjectFiles, code_of


@pytest.fixture
def s3() -> Iterator[str]:
    with s3_server() as endpoint:
        yield endpoint


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("s3://key:secret@bucket/prefix", "credentials"),
        ("s3://bucket/prefix?secret=1", "options do not belong"),
        ("nosuch://bucket", "nosuch"),
        ("bucket/prefix", "no URL"),
    ],
)
def test_a_url_that_cannot_be_used(url: str, part: str) -> None:
    with pytest.raises(ValueError, match=part) as raised:
        ObjectFiles(url)
    assert "secret@" not in str(raised.value)
    assert "secret=1" not in str(raised.value)


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_is_not_there() -> None:
    files = native.Files(ObjectFiles("s3://no-such-bucket/prefix"))
    with pytest.raises(OSError, match="s3://no-such-bucket/prefix") as raised:
        files.check_root()
    assert raised.value.errno == errno.ENOENT


def test_a_store_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
        files = native.Files(ObjectFiles(f"s3://{BUCKET}"))
        with pytest.raises(OSError, match="a probe failed") as raised:
            files.check_root()
    assert raised.value.errno not in (errno.ENOENT, 0)
    assert "very-secret" not in str(raised.value)


def test_uploads_that_end_early_leave_nothing(s3: str) -> None:
    prefix = secrets.token_hex(4)
    files = native.Files(ObjectFiles(f"s3://{BUCKET}/{prefix}"))
    file = files.open_append("seg-0000000001.kvs")
    file.append([bytes(40 << 20)])
    client = boto3.client("s3", endpoint_url=s3)

    def uploads() -> list[str]:  # tests before this one may have lost theirs with a daemon that was killed
        found = client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return [upload["Key"] for upload in found if upload["Key"].startswith(f"{prefix}/")]

    assert len(uploads()) == 1
    del file
    assert uploads() == []
    assert "Contents" not in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)


@contextlib.contextmanager
def trickle(answers_s: float) -> Iterator[str]:
    """Answers every request with 1000 bytes in the course of so many seconds."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(206)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            with contextlib.suppress(OSError):  # whoever asked may be gone
                for _ in range(1000):
                    self.wfile.write(b"x")
                    over.wait(answers_s / 1000)

        def log_message(self, *_: object) -> None:
            """Nowhere."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            over.set()
            server.shutdown()
            thread.join()


@pytest.mark.usefixtures("s3")
def test_a_server_that_trickles_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "CALL_S", 1.0)
    with trickle(answers_s=10.0) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(TimeoutError):
            ObjectFiles(f"s3://{BUCKET}").read("a", 0, 1000)


class Broken:
    """Answers whatever a test wants."""

    name = "broken"
    io_bytes_best = 1 << 20

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def _say(self, *_: object) -> object:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer

    check_root = size = read = create = read_all = publish = list = remove = _say


class NoErrno(OSError):
    @property
    def errno(self) -> int:  # type: ignore[override]
        raise RuntimeError("no errno here")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (OSError(errno.ENOSPC, "full"), errno.ENOSPC),
        (FileNotFoundError("without a number"), errno.EIO),
        (OSError(-3, "negative"), errno.EIO),
        (ValueError("x"), errno.EIO),
        (KeyboardInterrupt(), errno.EIO),
        (MemoryError(), errno.ENOMEM),
        (NoErrno(), errno.EIO),
        ("not what was promised", errno.EIO),
        (None, errno.EIO),
    ],
)
def test_nothing_but_an_error_comes_out_of_python(answer: object, code: int) -> None:
    files = native.Files(Broken(answer))
    calls = [lambda: files.open_read("a"), lambda: files.read_all("a", 10)]
    if isinstance(answer, BaseException):
        calls += [
            lambda: files.publish("a", b""),
            lambda: files.list("a"),
            lambda: files.remove("a"),
            lambda: files.open_append("a"),
            files.check_root,
        ]
    for call in calls:
        with pytest.raises(OSError, match=r".") as raised:
            call()
        assert raised.value.errno == code


def test_answers_that_lie_about_their_size() -> None:
    class Lies(Broken):
        def size(self, *_: object) -> int:
            return 100

        def read(self, *_: object) -> bytes:
            return b"short"

    files = native.Files(Lies(b"x" * 11))
    reader = files.open_read("a")
    with pytest.raises(EOFError):
        reader.read(0, [bytearray(10)])
    with pytest.raises(EOFError):
        reader.read(95, [bytearray(10)])
    with pytest.raises(OSError, match=r"."):
        reader.read(10, [bytearray(3)])  # it sends more, from who knows where
    with pytest.raises(OSError, match=r".") as raised:
        files.read_all("a", 10)
    assert raised.value.errno == errno.EFBIG


LEAVES = """
import sys, threading, time
import tpu_sync_native as native

begun = threading.Event()

def hang(*_):
    begun.set()
    while True:
        time.sleep(0.001)

class Files:
    name, io_bytes_best = "hangs", 1 << 20
    def size(self, path): return 100
    def create(self, path): return self
    read = list = abort = hang

def use(files):
    {use}

class Slow:  # the interpreter ends slowly, as one with many modules does
    def __del__(self, sleep=time.sleep):
        sleep(0.2)

sys.slow = Slow()
threading.Thread(target=use, args=(native.Files(Files()),), daemon=True).start()
assert begun.wait(30)
"""


@pytest.mark.parametrize(
    "use",
    [
        'file = files.open_append("a"); del file',
        'files.open_read("a").read(0, [bytearray(10)])',
        'files.list("a")',
    ],
)
def test_the_interpreter_may_end_while_a_call_hangs(use: str) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES.replace("{use}", use)], timeout=60)
    assert done.returncode == 0


def test_a_file_system_that_lacks_its_name() -> None:
    with pytest.raises(AttributeError):
        native.Files(object())


def test_codes() -> None:
    assert code_of(FileNotFoundError("x")) == errno.ENOENT
    assert code_of(TimeoutError()) == errno.ETIMEDOUT
    assert code_of(OSError(errno.EDQUOT, "x")) == errno.EDQUOT
    assert code_of(ValueError()) == errno.EIO
