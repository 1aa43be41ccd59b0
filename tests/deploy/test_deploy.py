"""The files of deploy/: their syntax, and that what they name exists."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]

from laneway import Laneway, Message
from laneway.cli.main import main
from laneway.errors import LanewayError
from laneway.gateway.gateway import Gateway
from laneway.gateway.route_table import ROUTES
from laneway.push import stored_counts
from laneway.push.stored_counts import Counts
from laneway.testing.servers import ReplyError, Wire, binary, free_port, until
from tests.conformance.valkey_setups import acl_rule
from tests.gateway.test_server import call

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
YAML = sorted(DEPLOY.rglob("*.yaml"))
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
WORKER_PATHS = {"/live", "/ready"}


def documents(path: Path) -> list[Any]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def parse(words: list[str]) -> click.Context:
    """What the command line makes of the words after `laneway`; raises for a wrong call."""
    context = click.Context(main)
    command = main.get_command(context, words[0])
    assert command is not None, words
    rest = words[1:]
    while isinstance(command, click.Group):
        command = command.get_command(context, rest[0])
        assert command is not None, words
        rest = rest[1:]
    return command.make_context(command.name, rest, parent=context)


def grace(words: list[str]) -> int:
    """The grace of a worker's call in seconds."""
    found = re.fullmatch(r"(\d+)s", parse(words).params["grace"])
    assert found
    return int(found[1])


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The series of the gateway's /metrics, each with its labels."""
    with Laneway(f"sqlite:///{tmp_path_factory.mktemp('metrics')}/laneway.db") as app:
        app.gate("stripe", rate=5)
        app.policy("push.*", gate="stripe")
        app.publish("push.acme", 1)
        app.lease(1)
        counts = Counts()
        counts.attempts["2xx"] = 1
        stored_counts.add(app.engine, counts)
        gateway = Gateway(app)
        asyncio.run(call(gateway, "GET", "/v1/topics"))
        status, text, _ = asyncio.run(call(gateway, "GET", "/metrics"))
        assert status == 200
        gateway.close()
    found: dict[str, set[str]] = {"up": {"instance"}}
    for line in text.decode().splitlines():
        if line.startswith("# TYPE"):
            found.setdefault(line.split()[2], set())
        elif not line.startswith("#"):
            sample = re.match(r"(\w+)(?:\{(.*)\})?", line)
            assert sample
            labels = set(re.findall(r"(\w+)=\"", sample[2] or ""))
            found.setdefault(sample[1], set()).update(labels)
    return found


def check_query(query: str, series: dict[str, set[str]]) -> None:
    """Every series and label of a query exists."""
    names = set(re.findall(r"\b(?:laneway_\w+|up\b)", query))
    assert names, query
    assert names <= series.keys(), names - series.keys()
    labels = {"job", "instance"}.union(*(series[name] for name in names))
    asked = set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)\s*\"", query))
    for group in re.findall(r"\bby \(([^)]*)\)", query):
        asked |= {name.strip() for name in group.split(",")}
    assert asked <= labels, f"{query}: {asked - labels}"


# Syntax


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml(path: Path) -> None:
    """Each file is YAML without duplicate keys."""

    class Strict(yaml.SafeLoader):
        pass

    def mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> Any:
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"{path.name}: {keys}"
        loader.flatten_mapping(node)
        return loader.construct_mapping(node, deep=True)

    Strict.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    assert list(yaml.load_all(path.read_text(), Loader=Strict))


def test_commands_in_comments() -> None:
    """The commands that comments tell to type exist."""
    found = []
    for path in DEPLOY.rglob("*"):
        if path.is_file():
            text = re.sub(r"\\\n\s*#\s*", "", path.read_text())
            pattern = r"^\s*#.*\b(?:laneway|worker) (token (?:create|generate)[\w -]*)"
            found += re.findall(pattern, text, re.MULTILINE)
    assert len(found) >= 4
    for each in found:
        parse(each.split())


# Prometheus and Grafana


def test_the_dashboard_shows_series_that_exist(series: dict[str, set[str]]) -> None:
    """Panels do not overlap, and their queries name series and labels of /metrics."""
    dashboard = json.loads((DEPLOY / "grafana" / "laneway.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        assert panel["description"], panel["title"]
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        for target in panel["targets"]:
            check_query(target["expr"].replace("$job", "laneway"), series)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    [job] = [each for each in dashboard["templating"]["list"] if each["name"] == "job"]
    assert "laneway_waiting" in job["query"]["query"]


def test_alerts_use_series_that_exist(series: dict[str, set[str]]) -> None:
    """
    Alerts have a severity and texts, the page lists each of them, and the tests of promtool expect
    each with its description.
    """
    tests = yaml.safe_load((DEPLOY / "prometheus" / "alerts_test.yaml").read_text())["tests"]
    expected = {
        (case["alertname"], alert["exp_annotations"]["description"])
        for test in tests
        for case in test["alert_rule_test"]
        for alert in case["exp_alerts"]
    }
    page = (DEPLOY.parent / "docs" / "production.md").read_text()
    [group] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]:
        check_query(rule["expr"], series)
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert f"`{rule['alert']}`" in page
        assert (rule["alert"], rule["annotations"]["description"]) in expected
        for command in re.findall(r"`laneway ([^`]+)`", rule["annotations"]["description"]):
            parse(command.split())


def test_promtool() -> None:
    """Prometheus itself accepts the rules and the configuration, and the alerts fire."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    for arguments in (
        ["check", "rules", "alerts.yaml"],
        ["check", "config", "--syntax-only", "prometheus.yaml"],
        ["test", "rules", "alerts_test.yaml"],
    ):
        result = subprocess.run(
            [promtool, *arguments],
            cwd=DEPLOY / "prometheus",
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr


# Containers


def test_dockerfile() -> None:
    """What hadolint would ask: pinned images, no root, no cache, exec forms, no secrets."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    steps = [
        line.partition(" ")[::2] for line in text.splitlines() if line and not line.startswith("#")
    ]
    bases = dict(rest.split("=") for name, rest in steps if name == "ARG")
    images = [rest.split()[0].strip("${}") for name, rest in steps if name == "FROM"]
    assert all(re.fullmatch(r"[\w/]+:\d+\.\d+-[\w-]+", bases[image]) for image in images), images
    final = steps[max(index for index, (name, _) in enumerate(steps) if name == "FROM") :]
    [user] = [rest for name, rest in final if name == "USER"]
    assert re.fullmatch(r"[1-9]\d{3,}:[1-9]\d{3,}", user)
    after = [name for name, _ in final[[name for name, _ in final].index("USER") :]]
    assert "RUN" not in after
    names = {name for name, _ in steps}
    assert not names & {"ADD", "MAINTAINER"}
    for name, rest in steps:
        if name in ("ENTRYPOINT", "CMD"):
            assert isinstance(json.loads(rest), list)
        if name == "WORKDIR":
            assert rest.startswith("/")
        for step in re.findall(r"pip (?:install|wheel) [^&]*", rest if name == "RUN" else ""):
            assert "--no-cache-dir" in step
            assert "--require-hashes" in step or "--no-deps" in step
        assert "sudo" not in rest
        assert not re.search(r"PASSWORD|SECRET|TOKEN", rest)
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for name, rest in steps:
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (DEPLOY.parent / source).exists()
                assert f"!{source}" in ignored


def test_locked_packages() -> None:
    """
    The image has the extras that its commands need, and its files name each package's version and
    hashes. `make image-lock` writes them.
    """
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    wanted = list(project["project"]["dependencies"])
    for extra in ("gateway", "metrics", "postgres", "push", "valkey"):
        wanted += project["project"]["optional-dependencies"][extra]
    for file, requirements in (
        ("requirements.txt", wanted),
        ("requirements-build.txt", project["build-system"]["requires"]),
    ):
        text = re.sub(r"#.*", "", (DEPLOY / file).read_text())
        locked = {}
        for name, version, hashes in re.findall(r"^(\S+)==(\S+)((?: \\\n.*)+)", text, re.MULTILINE):
            locked[name] = tuple(int(part) for part in version.split(".")[:2])
            assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}", hashes)) >= 1
        assert len(locked) == len(re.findall("==", text))
        for each in requirements:
            name, at_least = re.fullmatch(r"([\w-]+)(?:\[\w+\])?(?:>=([\d.]+))?", each).groups()  # type: ignore[union-attr]
            least = tuple(int(part) for part in at_least.split(".")) if at_least else ()
            assert locked[name] >= least, each


def test_compose() -> None:
    """Two workers, without rights; the files are there and the commands parse."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    assert services["worker"]["deploy"]["replicas"] == 2
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True
        assert service["healthcheck"]["test"][0] == "CMD"
        assert not service["image"].endswith(":latest")
        assert ":" in service["image"]
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).is_dir()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
    token_file = parse(services["gateway"]["command"]).params["token_file"]
    assert f"gateway:{Path(token_file).parent}" in services["gateway"]["volumes"]
    assert grace(services["worker"]["command"]) < int(services["worker"]["stop_grace_period"][:-1])
    paths = {route.path for route in ROUTES} | WORKER_PATHS
    for name in ("worker", "gateway"):
        [asked] = re.findall(r"http://127\.0\.0\.1:\d+(/\w+)", str(services[name]["healthcheck"]))
        assert asked in paths


# Valkey


class Started:
    """A Valkey that deploy/valkey/start.sh has started."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.password = "it's \\ $HOME & / % all"
        self.acl = folder / "users.acl"
        (folder / "bin").mkdir()
        (folder / "bin" / "valkey-server").symlink_to(binary())
        self.log = folder / "log"
        log = self.log.open("w")
        self._process = subprocess.Popen(
            [
                *("sh", str(DEPLOY / "valkey" / "start.sh")),
                *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)),
            ],
            env={
                "PATH": f"{folder}/bin:{os.environ['PATH']}",
                "LANEWAY_PASSWORD": self.password,
                "LANEWAY_ACL_FILE": str(self.acl),
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        log.close()
        try:
            until(self._answers, "the server")
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        assert self._process.poll() is None, self.log.read_text()
        return self.run_as("probe", "probe", "PING") == "PONG"

    def run_as(self, user: str, password: str, *words: object) -> Any:
        wire = Wire(self.port)
        try:
            wire.run("AUTH", user, password)
            return wire.run(*words)
        finally:
            wire.close()

    @property
    def url(self) -> str:
        from urllib.parse import quote

        return f"valkey://laneway:{quote(self.password, safe='')}@127.0.0.1:{self.port}"

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    try:
        started = Started(tmp_path_factory.mktemp("valkey"))
    except RuntimeError as error:
        pytest.skip(str(error))
    yield started
    started.close()


def test_rights_are_those_of_the_engine() -> None:
    """
    Exactly those with which the conformance suite runs; if the engine needs another command, add
    it here, too.
    """
    [line] = re.findall(
        r"^user laneway on #PASSWORD_SHA256 (.*)$",
        (DEPLOY / "valkey" / "users.acl").read_text(),
        re.MULTILINE,
    )
    assert line.split() == acl_rule().split()


def test_users(valkey: Started) -> None:
    """The file has the password's hash only; nobody can do more than they need."""
    text = valkey.acl.read_text()
    assert hashlib.sha256(valkey.password.encode()).hexdigest() in text
    assert valkey.password not in text
    assert valkey.acl.stat().st_mode & 0o077 == 0
    wire = Wire(valkey.port)
    with pytest.raises(ReplyError, match="NOAUTH"):
        wire.run("PING")
    wire.close()
    for user, password, words in (
        ("probe", "probe", ("GET", "laneway:x")),
        ("laneway", valkey.password, ("FLUSHALL",)),
        ("laneway", valkey.password, ("GET", "other")),
        ("laneway", valkey.password, ("CONFIG", "SET", "maxmemory", "1")),
        ("laneway", valkey.password, ("KEYS", "*")),
    ):
        with pytest.raises(ReplyError, match="NOPERM"):
            valkey.run_as(user, password, *words)
    with pytest.raises(LanewayError, match="password"):
        _ = Laneway(f"valkey://laneway:wrong@127.0.0.1:{valkey.port}").engine


def test_the_engine_works_with_these_rights(valkey: Started) -> None:
    """Every part of the engine, durability fsync, and no finding of the doctor."""
    handled: list[str] = []
    with Laneway(valkey.url, durability="fsync", tiers={"high": 6, "low": 1}) as app:
        app.gate("stripe", rate=1000, concurrency=10)
        app.policy("push.*", rate="1000/s", gate="stripe", retries=1, backoff="1ms")
        app.policy("merged", merge="last", serial=True)
        app.topic_group("customer.acme", weight=2)
        app.topic("orders").subscribe("audit")

        @app.handler("push.*")
        def push(message: Message) -> None:
            handled.append(message.topic)
            if message.body == "bad":
                raise ValueError("bad")

        @app.task(topic="sums")
        def add(a: int, b: int) -> int:
            return a + b

        app.publish("push.acme", "good", key="k", priority=5)
        app.publish("push.bolt", "bad")
        app.publish("orders", 1)
        app.publish("later", 1, delay="1h")
        assert app.publish("merged", 1, key="k").outcome == "accepted"
        assert app.publish("merged", 2, key="k").outcome == "merged"
        app.publish_many(Message("many", n) for n in range(600))
        for delivery in app.lease(50, topics=["many"]):
            delivery.ack()
        [copy] = app.lease(1, topics=["orders#audit"])
        copy.extend(30)
        copy.release()
        assert app.topic("many").stats().waiting == 550
        assert app.topic("many").purge() == 550
        job = add.delay(1, 2)
        flow = (add.s(1, 1) | add.s(3)).delay()
        app.schedule("nightly", Message("nightly", 1), every="1h")
        app.run_worker(burst=True)
        assert job.get(timeout=10) == 3
        assert flow.get(timeout=10) == 5
        assert "push.acme" in handled
        [letter] = app.dead_letters.list()
        assert letter.message.topic == "push.bolt"
        assert app.topic("push.bolt").redrive() == 1
        app.topic("later").pause()
        assert app.explain(app.topic("later").peek(1)[0].id) is not None
        assert app.topics(order="backlog", limit=5)
        app.history.read()
        app.workers()
        findings = [check for check in app.engine.doctor() if not check.ok]
        assert findings == []


def test_start_needs_a_password(tmp_path: Path) -> None:
    """Without a password the server does not start."""
    result = subprocess.run(
        ["sh", str(DEPLOY / "valkey" / "start.sh")],
        env={"PATH": os.environ["PATH"], "LANEWAY_ACL_FILE": str(tmp_path / "acl")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode != 0
    assert "set LANEWAY_PASSWORD" in result.stderr
    assert not (tmp_path / "acl").exists()


# systemd


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units(path: Path, tmp_path: Path) -> None:
    """The command parses, the time to stop exceeds the grace, and systemd accepts the unit."""
    text = re.sub(r"\\\n\s*", "", path.read_text())
    lines = [line for line in text.splitlines() if "=" in line and line[0] != "#"]
    settings: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition("=")
        assert name not in settings, f"{name} comes twice"
        settings[name] = value
    program, *words = shlex.split(settings["ExecStart"])
    assert program.endswith("/laneway")
    if words[0] == "serve":
        assert parse(words).params["token_file"] == "/var/lib/laneway/token"
        assert settings["StateDirectory"] == "laneway"
    seconds = grace(words) if words[0] == "worker" else 10
    assert int(settings["TimeoutStopSec"]) > seconds
    assert settings["User"] != "root"
    assert settings["StartLimitIntervalSec"] == "0"  # it starts again while the store is away
    assert "PrivateTmp" not in settings  # TMPDIR is where processes on one file wake each other
    assert settings["Environment"] == f"TMPDIR=/run/{settings['RuntimeDirectory']}"
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is missing; the rest of the unit was checked")
    copy = tmp_path / path.name.replace("@", "@1")
    copy.write_text(path.read_text().replace(program, "/bin/true"))
    result = subprocess.run(
        [analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


# Kubernetes


def objects() -> dict[tuple[str, str], Any]:
    found = {}
    for path in (DEPLOY / "kubernetes").glob("*.yaml"):
        for each in documents(path):
            found[each["kind"], each["metadata"]["name"]] = each
    return found


def containers() -> dict[str, tuple[Any, Any]]:
    """By name: each container with the specification of its pod."""
    found = {}
    for (kind, _), each in objects().items():
        if kind in ("Deployment", "StatefulSet"):
            pod = each["spec"]["template"]["spec"]
            assert (
                each["spec"]["selector"]["matchLabels"]
                == (each["spec"]["template"]["metadata"]["labels"])
            )
            [container] = pod["containers"]
            found[container["name"]] = (container, pod)
    return found


def test_kubernetes_pods() -> None:
    """Probes that ask paths that exist, no root, bounded memory, and time enough to stop."""
    paths = {"worker": WORKER_PATHS, "gateway": {route.path for route in ROUTES}}
    assert containers().keys() == {"worker", "gateway", "valkey"}
    for name, (container, pod) in containers().items():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["automountServiceAccountToken"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["resources"]["limits"]["memory"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for kind in ("livenessProbe", "readinessProbe"):
            probe = container[kind]
            if name == "valkey":
                assert "ping" in probe["exec"]["command"]
            else:
                assert probe["httpGet"]["path"] in paths[name]
                assert probe["httpGet"]["port"] in ports
    worker, pod = containers()["worker"]
    assert grace(worker["args"]) < pod["terminationGracePeriodSeconds"]
    assert parse(worker["args"]).params["health_port"] == worker["ports"][0]["containerPort"]
    gateway, pod = containers()["gateway"]
    options = parse(gateway["args"]).params
    assert options["bind"].endswith(f":{gateway['ports'][0]['containerPort']}")
    [mount] = [each for each in gateway["volumeMounts"] if each["name"] == "token"]
    [volume] = [each["secret"] for each in pod["volumes"] if each["name"] == "token"]
    assert f"{mount['mountPath']}/{volume['items'][0]['path']}" == options["token_file"]


def test_kubernetes_names(series: dict[str, set[str]]) -> None:
    """Services, budgets and the scaling name what exists."""
    all_objects = objects()
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for (kind, _), each in all_objects.items()
        if kind in ("Deployment", "StatefulSet")
    ]
    for (kind, name), each in all_objects.items():
        if kind == "Service":
            assert each["spec"]["selector"] in labels, name
        elif kind == "PodDisruptionBudget":
            assert each["spec"]["selector"]["matchLabels"] in labels, name
    scaling = all_objects["ScaledObject", "laneway-worker"]["spec"]
    assert ("Deployment", scaling["scaleTargetRef"]["name"]) in all_objects
    [trigger] = scaling["triggers"]
    metadata = trigger["metadata"]
    assert metadata["valueLocation"] in series
    service, namespace, port, path = re.findall(
        r"http://([\w-]+)\.(\w+)\.svc:(\d+)(/\w+)", metadata["url"]
    )[0]
    assert all_objects["Service", service]["spec"]["ports"][0]["port"] == int(port)
    assert path in {route.path for route in ROUTES}
    kustomization = yaml.safe_load((DEPLOY / "kustomization.yaml").read_text())
    assert kustomization["namespace"] == namespace
    assert ("TriggerAuthentication", trigger["authenticationRef"]["name"]) in all_objects
    assert {DEPLOY / each for each in kustomization["resources"]} == set(
        (DEPLOY / "kubernetes").glob("*.yaml")
    )


def test_kubernetes_examples(series: dict[str, set[str]]) -> None:
    """What a cluster may have as well names services, ports, pods and secrets that exist."""
    all_objects = objects()
    found = {
        (each["kind"], each["metadata"]["name"]): each["spec"]
        for path in (DEPLOY / "kubernetes" / "examples").glob("*.yaml")
        for each in documents(path)
    }
    assert {kind for kind, _ in found} == {"Ingress", "NetworkPolicy", "ServiceMonitor"}
    service = all_objects["Service", "laneway-gateway"]
    [port] = service["spec"]["ports"]

    [rule] = found["Ingress", "laneway-gateway"]["rules"]
    [path] = rule["http"]["paths"]
    assert path["backend"]["service"] == {
        "name": service["metadata"]["name"],
        "port": {"name": port["name"]},
    }

    monitor = found["ServiceMonitor", "laneway-gateway"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    [endpoint] = monitor["endpoints"]
    assert endpoint["port"] == port["name"]
    assert endpoint["path"] in {route.path for route in ROUTES}
    [secret] = all_objects["TriggerAuthentication", "laneway-metrics"]["spec"]["secretTargetRef"]
    assert endpoint["authorization"]["credentials"] == {
        "name": secret["name"],
        "key": secret["key"],
    }
    assert {"targetLabel": "job", "replacement": "laneway"} in endpoint["relabelings"]

    listening = {each["containerPort"] for pod, _ in containers().values() for each in pod["ports"]}
    text = json.dumps([spec for (kind, _), spec in found.items() if kind == "NetworkPolicy"])
    assert {int(each) for each in re.findall(r'"port": (\d+)', text)} - {53} <= listening
    named = re.findall(r'"app.kubernetes.io/component": "(\w+)"', text)
    for values in re.findall(
        r'"app.kubernetes.io/component", "operator": "In", "values": (\[.*?\])', text
    ):
        named += json.loads(values)
    assert set(named) == containers().keys()


def test_kustomize() -> None:
    """kubectl puts the files together."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is missing")
    result = subprocess.run(
        [kubectl, "kustomize", str(DEPLOY)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    built = [each for each in yaml.safe_load_all(result.stdout) if each]
    [settings] = [each for each in built if each["kind"] == "ConfigMap"]
    assert settings["data"].keys() == {"start.sh", "users.acl", "valkey.conf"}
    [stateful] = [each for each in built if each["kind"] == "StatefulSet"]
    mounted = stateful["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"]
    assert mounted == settings["metadata"]["name"]
