"""A stand-in for the Hugging Face Hub: repositories of models, over its HTTP protocol."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
from werkzeug import Request, Response
from werkzeug.serving import WSGIRequestHandler, make_server

TOKEN = "hf_of_the_user"


@attrs.define
class Hub:
    """A server whose repositories are lists of commits, each with all files by path.

    Files of safetensors are large: they are uploaded, and named by their SHA-256, as LFS does.
    """

    commits: dict[str, list[dict[str, bytes]]] = attrs.field(factory=dict)
    blobs: dict[str, bytes] = attrs.field(factory=dict)
    damaged: set[str] = attrs.field(factory=set)
    """The files whose last byte is changed on their way."""
    address: str = ""

    def files(self, repository: str, revision: str = "main") -> dict[str, bytes]:
        """Return the files of a commit."""
        names = [self.commit(repository, i) for i in range(len(self.commits[repository]))]
        return self.commits[repository][-1 if revision == "main" else names.index(revision)]

    def commit(self, repository: str, number: int = -1) -> str:
        """Return the hash of a commit."""
        number %= len(self.commits[repository])
        return hashlib.sha1(f"{repository} {number}".encode()).hexdigest()

    def answer(self, request: Request) -> Response:
        """Return the response to a request."""
        if request.headers.get("Authorization") != f"Bearer {TOKEN}" and request.method != "PUT":
            return Response("{}", 401)
        for pattern, answer in ROUTES.items():
            if found := re.fullmatch(pattern, f"{request.method} {request.path}"):
                return answer(self, request, *found.groups())
        return Response(f"{request.method} {request.path}", 404)

    def create(self, request: Request) -> Response:
        given = request.get_json()
        name = f"{given.get('organization') or 'me'}/{given['name']}"
        self.commits.setdefault(name, [{".gitattributes": b"*.safetensors filter=lfs"}])
        return _json({"url": f"{self.address}/{name}"})

    def info(self, request: Request, name: str, revision: str = "main") -> Response:
        if name not in self.commits:
            return Response("{}", 404, {"X-Error-Code": "RepoNotFound"})
        sha = self.commit(name) if revision == "main" else revision
        listed = [{"rfilename": path} for path in self.files(name, revision)]
        return _json({"id": name, "sha": sha, "siblings": listed})

    def tree(self, request: Request, name: str, revision: str, path: str = "") -> Response:
        return _json([_entry(p, one) for p, one in self.files(name, revision).items()])

    def preupload(self, request: Request, name: str, revision: str) -> Response:
        paths = [one["path"] for one in request.get_json()["files"]]
        modes = [{"path": p, "uploadMode": _mode(p), "shouldIgnore": False} for p in paths]
        return _json({"files": modes})

    def batch(self, request: Request, name: str) -> Response:
        given = request.get_json()["objects"]
        for one in given:
            one["actions"] = {"upload": {"href": f"{self.address}/lfs/{one['oid']}"}}
        return _json({"objects": given, "transfer": "basic"})

    def put(self, request: Request, digest: str) -> Response:
        self.blobs[digest] = request.get_data()
        return Response("", 200, {"ETag": digest})

    def write(self, request: Request, name: str, revision: str) -> Response:
        new = dict(self.files(name))
        for line in map(json.loads, request.get_data().splitlines()):
            value = line["value"]
            if line["key"] == "file":
                new[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                new[value["path"]] = self.blobs[value["oid"]]
        self.commits[name].append(new)
        sha = self.commit(name)
        url = f"{self.address}/{name}/commit/{sha}"
        return _json({"commitUrl": url, "commitOid": sha, "success": True})

    def resolve(self, request: Request, name: str, revision: str, path: str) -> Response:
        sha = self.commit(name) if revision == "main" else revision
        content = self.files(name, revision).get(path)
        if content is None:
            return Response("", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": sha})
        entry = _entry(path, content)
        digest = entry.get("lfs", entry)["oid"]
        if path in self.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        return Response(content, 200, {"X-Repo-Commit": sha, "ETag": f'"{digest}"'})


ROUTES: dict[str, Any] = {
    "POST /api/repos/create": Hub.create,
    "POST /api/validate-yaml": lambda hub, request: _json({"errors": [], "warnings": []}),
    r"GET /api/models/([^/]+/[^/]+)(?:/revision/(.+))?": lambda hub, request, name, revision: (
        hub.info(request, name, revision or "main")
    ),
    r"GET /api/models/([^/]+/[^/]+)/tree/([^/]+)/?(.*)": Hub.tree,
    r"POST /api/models/([^/]+/[^/]+)/preupload/(.+)": Hub.preupload,
    r"POST /([^/]+/[^/]+)\.git/info/lfs/objects/batch": Hub.batch,
    r"PUT /lfs/(.+)": Hub.put,
    r"POST /api/models/([^/]+/[^/]+)/commit/(.+)": Hub.write,
    r"(?:GET|HEAD) /([^/]+/[^/]+)/resolve/([^/]+)/(.+)": Hub.resolve,
}


class _Quiet(WSGIRequestHandler):
    def log(self, *args: Any) -> None:
        pass


def _json(value: Any) -> Response:
    return Response(json.dumps(value), 200, {"Content-Type": "application/json"})


def _mode(path: str) -> str:
    return "lfs" if path.endswith(".safetensors") else "regular"


def _entry(path: str, content: bytes) -> dict[str, Any]:
    git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    entry = {"type": "file", "path": path, "size": len(content), "oid": git}
    if _mode(path) == "lfs":
        large = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content)}
        entry["lfs"] = {**large, "pointerSize": 130}
    return entry


@contextmanager
def serving() -> Iterator[Hub]:
    """Serve a hub without repositories on this machine."""
    hub = Hub()
    app = Request.application(hub.answer)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    server.daemon_threads = True
    hub.address = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
