"""The files in `deploy/`, checked by the tools for their kinds, and against this program. No image
is built here, and nothing runs in a container: that needs a daemon. docs/deployment.md says what
was run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import stat
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from ebbtide.gc.engines.spark import session
from ebbtide.gc.engines.spark.conf import read_text
from ebbtide.notify import FAMILIES, OUTCOME
from ebbtide.server.metrics import Metrics, ScheduleFamilies
from ebbtide.settings import Settings, list_settings
from tests.cli.test_examples import check, listed_commands
from tests.support.commands import captured

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "Dockerfile"
KUBERNETES = DEPLOY / "kubernetes"
RULES = DEPLOY / "prometheus" / "rules.yaml"
GUIDE = ROOT / "docs" / "deployment.md"
PASSWORD = {
    "name": "PGPASSWORD",
    "valueFrom": {"secretKeyRef": {"name": "ebbtide-database", "key": "password"}},
}
UNITS = sorted((DEPLOY / "systemd").glob("*.[st]*"))
PROGRAM = "/opt/ebbtide/.venv/bin/ebbtide"
EXPOSURE_MAX = 2.0
"""Of systemd's own measure, from 0 to 10; below 2 it says OK."""


def tool(name: str) -> str:
    """Its path, beside this Python or on the PATH."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def run(name: str, *arguments: object, **more: str) -> str:
    command = [tool(name), *map(str, arguments)]
    done = captured(command, cwd=DEPLOY, env=os.environ | more, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_image() -> None:
    assert run("hadolint", "--failure-threshold", "style", DOCKERFILE) == ""


def test_the_image_has_every_extra() -> None:
    """`serve` and runs on buckets need several: without one, a container ends as it starts."""
    (extras,) = re.findall(r"'\.\[([\w,]+)\]'", DOCKERFILE.read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = project["optional-dependencies"]
    (whole,) = known["all"]
    named = set(whole.removeprefix("ebbtide[").removesuffix("]").split(","))
    assert named == known.keys() - {"all"}
    assert set(extras.split(",")) in ({"all"}, named)


def test_the_image_starts_executors() -> None:
    """Spark gives their pods no command, only the word `executor` for the image's entrypoint."""
    whole, _, last = DOCKERFILE.read_text().rpartition("\nFROM ")
    (started,) = re.findall(r"^COPY .*deploy/executor\.sh (\S+)$", last, re.MULTILINE)
    assert f'ENTRYPOINT ["{started}"]' in last.splitlines()
    # A builder forgets the command of an earlier stage when the entrypoint changes.
    (command,) = re.findall(r"^CMD .*$", whole, re.MULTILINE)
    assert command in last.splitlines()


def test_images_are_pinned() -> None:
    """By full versions: a tag such as `17` or `latest` is another image each month."""
    (python,) = re.findall(r"^ARG PYTHON=(\S+)$", DOCKERFILE.read_text(), re.MULTILINE)
    bases = set(re.findall(r"^FROM (\S+:\S+)", DOCKERFILE.read_text(), re.MULTILINE))
    assert bases == {"python:${PYTHON}"}
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"].values()
    tags = [each["image"].partition(":")[2] for each in services if ":" in each["image"]]
    assert len(tags) == 2
    for tag in [python, *tags]:
        assert re.match(r"v?\d+\.\d+(\.\d+)?\b", tag), tag


def test_the_image_is_not_of_one_architecture() -> None:
    assert not re.search("amd64|x86|arm64|aarch64", DOCKERFILE.read_text())


def test_the_image_makes_sparks_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the memory that a run has: it is part of the archive's name."""
    made: list[str] = []
    monkeypatch.setattr(
        session, "make_archive", lambda *, driver_memory: made.append(driver_memory)
    )
    (code,) = re.findall(
        r'^RUN python -c "(.+?)"', DOCKERFILE.read_text(), re.MULTILINE | re.DOTALL
    )
    exec(code.replace("\\\n", ""))  # the builder joins the lines
    assert made == [Settings().spark_driver_memory]


def test_what_the_image_copies_is_there() -> None:
    """And reaches the builder: all that is not named in the list of exceptions is ignored."""
    sent = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert sent[0] == "*"
    copied = [
        source
        for line in DOCKERFILE.read_text().splitlines()
        if line.startswith("COPY") and "--from" not in line
        for source in [word for word in line.split()[1:-1] if not word.startswith("--")]
    ]
    assert len(copied) == 7
    for source in copied:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in sent, source


def test_yaml() -> None:
    rules = "{extends: default, rules: {line-length: {max: 100}}}"
    assert run("yamllint", "--strict", "-d", rules, DEPLOY) == ""


def test_the_compose_file() -> None:
    whole = ["--env-file", "example.env", "-f", "compose.yaml", "--profile", "collect"]
    shown = yaml.safe_load(run("docker-compose", *whole, "config"))
    server = shown["services"]["server"]
    assert server["environment"]["EBBTIDE_DATABASE_URL"] == "postgresql://ebbtide@database/ebbtide"
    assert server["environment"]["PGPASSWORD"] == "change-this-password"
    assert server["environment"]["AWS_SECRET_ACCESS_KEY"] == "change-this-secret"
    assert server["read_only"] is True
    assert [port["host_ip"] for port in server["ports"]] == ["127.0.0.1"]
    check([*shown["services"]["collect"]["entrypoint"][1:], "lake"])


def test_the_passwords_stay_out_of_git() -> None:
    """The first step that the compose file names makes a file with passwords in the checkout."""
    (made,) = re.findall(r"cp deploy/example.env (\S+)", (DEPLOY / "compose.yaml").read_text())
    assert f"/{made}" in (ROOT / ".gitignore").read_text().splitlines()


def containers(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from value.get("containers") or ()
        for each in value.values():
            yield from containers(each)
    elif isinstance(value, list):
        for each in value:
            yield from containers(each)


@pytest.mark.parametrize("patch", ["", "executors.yaml"])
def test_the_manifests(patch: str, tmp_path: Path) -> None:
    """With the oldest Kubernetes that the documentation names, and the newest."""
    directory = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, directory)
    chosen = directory / "kustomization.yaml"
    if patch:
        with chosen.open("a") as file:
            file.write(f"patches:\n  - path: {patch}\n")
    else:
        chosen.write_text(chosen.read_text().replace("# - ingress", "- ingress"))
    whole = tmp_path / "all.yaml"
    whole.write_text(run("kubectl", "kustomize", directory))
    (oldest,) = re.findall(r"Kubernetes (\d\.\d+) or newer", GUIDE.read_text())
    for version in ([], ["--kubernetes-version", oldest]):
        assert run("kubernetes-validate", "--strict", "--quiet", *version, whole) == ""
    manifests = list(yaml.safe_load_all(whole.read_text()))
    (settings,) = [each["data"] for each in manifests if each["kind"] == "ConfigMap"]
    found = list(containers(manifests))
    assert {each["name"] for each in found} == {"serve", "collect"}
    assert ("Ingress" in {each["kind"] for each in manifests}) is (not patch)
    for each in found:
        assert each["securityContext"]["readOnlyRootFilesystem"] is True
        assert each["image"] == "registry.example.org/ebbtide:0.1.0"
        check(each["args"])
        assert PASSWORD in each["env"]
        # A variable is replaced in those behind it alone, and all of `envFrom` come before.
        names = [*settings, *(one["name"] for one in each.get("env", ()))]
        for place, one in enumerate(each.get("env", ()), len(settings)):
            used = re.findall(r"\$\((\w+)\)", one.get("value", ""))
            assert set(used) <= set(names[:place])


def test_what_reaches_the_server() -> None:
    """The ingress and Prometheus's operator name the service's port, and a route."""
    (_, service, _), (ingress,), (monitor, secret) = (
        list(yaml.safe_load_all((KUBERNETES / f"{name}.yaml").read_text()))
        for name in ("server", "ingress", "monitor")
    )
    (port,) = (each["name"] for each in service["spec"]["ports"])
    assert monitor["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["port"], endpoint["path"]) == (port, "/api/v1/metrics")
    for part in ("username", "password"):
        assert endpoint["basicAuth"][part] == {"name": secret["metadata"]["name"], "key": part}
        assert part in secret["stringData"]
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    named = {"name": service["metadata"]["name"], "port": {"name": port}}
    assert path["backend"]["service"] == named


def series() -> dict[str, set[str]]:
    """The metrics of runs and of servers as Prometheus knows them, with their labels."""
    metrics = Metrics()
    metrics.requests.labels("GET", "/", "200").inc()
    metrics.seconds.labels("GET", "/").observe(1)
    shown = text_string_to_metric_families(metrics.render().decode())
    found = {each.name: set(each.labels) for family in shown for each in family.samples}
    for family in ScheduleFamilies().collect():
        end = "_total" if family.type == "counter" else ""
        found[family.name + end] = {"repository"}
    found |= {name: {"repository"} for name in FAMILIES}
    found[OUTCOME].add("outcome")
    return found


def expressions() -> Iterator[str]:
    panels = json.loads((DEPLOY / "grafana" / "ebbtide.json").read_text())["panels"]
    yield from (target["expr"] for panel in panels for target in panel.get("targets", ()))
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def test_metrics_of_dashboard_and_rules() -> None:
    known = series()
    targets = {"job", "instance"}
    used = set()
    for expression in expressions():
        (named,) = {tuple(re.findall(r"\bebbtide_\w+", expression))}
        (name,) = named
        used.add(name)
        assert name in known, name
        labels = set(re.findall(r"(\w+)(?==~|=\")", expression))
        for grouped in re.findall(r"by \(([\w, ]+)\)", expression):
            labels |= set(grouped.split(", "))
        assert labels <= known[name] | targets, expression
    assert len(used) >= 20


def test_the_rules_are_prometheuss() -> None:
    assert "SUCCESS: 7 rules found" in run("promtool", "check", "rules", RULES)


def test_the_end_of_a_servers_pod() -> None:
    """It waits while nodes still send requests, and then has time to answer them."""
    manifests = yaml.safe_load_all((KUBERNETES / "server.yaml").read_text())
    (pod,) = [
        each["spec"]["template"]["spec"] for each in manifests if each["kind"] == "Deployment"
    ]
    word, seconds = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert word == "sleep"
    assert 5 <= int(seconds) <= pod["terminationGracePeriodSeconds"] - 30


def test_processors_of_runs() -> None:
    """On `local[*]` a run has a task for each processor of the limit, not of the node's."""
    (collect,) = containers(yaml.safe_load((KUBERNETES / "collect.yaml").read_text()))
    resources = collect["resources"]
    assert resources["limits"]["cpu"] == resources["requests"]["cpu"]


def test_settings_of_executors() -> None:
    """Executors have no settings but these. Pods that Spark makes name each variable once: Spark
    itself gives them their local directory."""
    (collect,) = containers(yaml.safe_load((KUBERNETES / "executors.yaml").read_text()))
    (text,) = [one["value"] for one in collect["env"] if one["name"] == "EBBTIDE_SPARK_CONF"]
    conf = read_text(text)
    for name in yaml.safe_load((KUBERNETES / "settings.yaml").read_text().split("---")[1])["data"]:
        if name.startswith("AWS_"):
            assert conf[f"spark.executorEnv.{name}"] == f"$({name})"
    assert "spark.executorEnv.SPARK_LOCAL_DIRS" not in conf
    # Two Python workers need more than Spark's default, a tenth of Java's memory.
    assert conf["spark.executor.memoryOverhead"] == "1600m"


def test_settings_are_the_programs() -> None:
    known = {each.variable for each in list_settings()}
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    named = {path: set(re.findall(r"\bEBBTIDE_[A-Z_]+", path.read_text())) for path in files}
    assert sum(map(bool, named.values())) >= 5
    for path, found in named.items():
        assert found <= known, path


def test_commands_are_the_programs() -> None:
    lines = [line for unit in UNITS for line in unit.read_text().splitlines()]
    started = [line.partition("=")[2] for line in lines if line.startswith("ExecStart=")]
    assert len(started) == 2
    for command in started:
        program, *words = shlex.split(command.replace("%i", "lake"))
        assert program == PROGRAM
        check(words)
    found = re.findall(r"^CMD (\[.*\])$", DOCKERFILE.read_text(), re.MULTILINE)
    assert len(found) == 2
    for words in map(yaml.safe_load, found):
        check(words)
    for path in DEPLOY.rglob("*.yaml"):
        for value in yaml.safe_load_all(path.read_text()):
            for words in listed_commands(value):
                check(words)


def test_the_units(tmp_path: Path) -> None:
    """With a program at a path that is there, and as an instance."""
    written = []
    for unit in UNITS:
        place = tmp_path / unit.name.replace("@", "@lake")
        place.write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
        written.append(place)
    assert len(written) == 3
    assert run("systemd-analyze", "verify", *written, SYSTEMD_LOG_LEVEL="warning") == ""
    for place in written:
        if place.suffix == ".service":
            told = run("systemd-analyze", "security", "--offline=true", "--no-pager", place)
            level = re.search(r"exposure level for \S+ ([\d.]+)", told)
            assert level is not None
            assert float(level[1]) < EXPOSURE_MAX


def test_runs_of_the_next_night_start() -> None:
    """systemd refuses a start too many, and counts from the first start of an interval. It lasts
    for all starts of one night, but ends before the next night's start.
    """
    text = (DEPLOY / "systemd" / "ebbtide-collect@.service").read_text()
    (interval,) = re.findall(r"^StartLimitIntervalSec=(\d+)h$", text, re.MULTILINE)
    (burst,) = re.findall(r"^StartLimitBurst=(\d+)$", text, re.MULTILINE)
    (between,) = re.findall(r"^RestartSec=(\d+)min$", text, re.MULTILINE)
    timer = (DEPLOY / "systemd" / "ebbtide-collect@.timer").read_text()
    (delay,) = re.findall(r"^RandomizedDelaySec=(\d+)min$", timer, re.MULTILINE)
    assert int(burst) * int(between) / 60 < int(interval) < 24 - int(delay) / 60


def test_the_start_of_an_executor(tmp_path: Path) -> None:
    """What Java is called with. Spark's options stand first, each as it was given."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$SPARK_HOME" "$@"\n')
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "JAVA_HOME": str(tmp_path),
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "4g",
        "SPARK_APPLICATION_ID": "application",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.1",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Da=b 'c' $(d)",
        "SPARK_JAVA_OPT_1": "-De",
    }
    done = captured(["/bin/sh", DEPLOY / "executor.sh", "executor"], env=environment)
    home, *words = done.stdout.splitlines()
    assert (Path(home) / "jars").is_dir()
    assert words[:5] == ["-Da=b 'c' $(d)", "-De", "-Xms4g", "-Xmx4g", "-cp"]
    assert words[5] == f"{home}/conf:{home}/jars/*:"
    assert words[6].endswith(".KubernetesExecutorBackend")
    assert words[7:] == [
        *("--driver-url", "spark://driver", "--executor-id", "7", "--cores", "2"),
        *("--app-id", "application", "--hostname", "10.0.0.1"),
        *("--resourceProfileId", "0", "--podName", "pod"),
    ]
