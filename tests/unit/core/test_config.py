"""What a person can get wrong in the file, and the one sentence that answers it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from loms.core import config, units
from loms.core.errors import ConfigError


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "loms.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("store:\n  pth: /x\n", "{file}:2: unknown key 'store.pth'; did you mean 'path'?"),
        (
            "scrape:\n  jobs:\n  - name: a\n    targets: []\n    tls:\n      ca_fil: x\n",
            "{file}:6: unknown key 'scrape.jobs[0].tls.ca_fil'; did you mean 'ca_file'?",
        ),
        ("scrape:\n  interval: 5 parsecs\n", "{file}:2: scrape.interval: '5 parsecs' is not a duration; write for"),
        ("scrape:\n  interval: 200ms\n", "{file}:2: scrape.interval: input should be greater than or equal to 1"),
        ("scrape:\n  jobs:\n  - targets: []\n", "{file}:3: key 'scrape.jobs[0].name' is required"),
        ("store: {path: /x}\nstore: {path: /y}\n", "{file}:2: key 'store' stands there twice"),
        ("store: [\n", "{file}:2: not valid YAML"),
        ("- a\n- b\n", "{file}: the file must be a mapping of sections, not a list"),
        ("server:\n  port: 70000\n", "{file}:2: server.port: input should be less than or equal to 65535"),
        ("server:\n  host: 0.0.0.0\n", "{file}:2: server.host '0.0.0.0' is reachable from other machines"),
        (
            "scrape:\n  jobs:\n  - {name: a, interval: 10ms}\n",
            "{file}:3: scrape.jobs[0].interval: input should be greater",
        ),
        ("scrape:\n  jobs: [{name: a}, {name: a}]\n", "{file}:2: scrape.jobs: two jobs are named 'a'"),
        ("server: {host: 0.0.0.0, token: ''}\n", "{file}:1: server.token: value should have at least 1 item"),
        ("scrape:\n  drop: ['([']\n", "{file}:2: scrape.drop: '([' is not a regular expression"),
        ("scrape:\n  jobs: [{name: a, path: metrics}]\n", "{file}:2: scrape.jobs[0].path: string should match"),
        ("store:\n  retention: .inf\n", "{file}:2: store.retention: 'inf' is not a duration"),
        ("a: &x [*x]\n", "{file}: an alias refers to itself"),
        ("log_level: loud\n", "{file}:1: log_level: input should be 'debug', 'info', 'warning' or 'error'"),
        ("alerting:\n  webhooks:\n  - url: ftp://x\n", "{file}:3: alerting.webhooks[0].url: string should match"),
        ("labels:\n  refuse: [le]\n", "{file}:1: labels: 'le' cannot be refused or folded"),
        ("labels: {refuse: [a], fold: {a: {}}}\n", "{file}:1: labels: 'a' is both refused and folded"),
        (
            "labels:\n  fold:\n    top: {topp: 3}\n",
            "{file}:3: unknown key 'labels.fold.top.topp'; did you mean 'top'?",
        ),
        (
            "labels:\n  fold:\n    tenant: {top: 0}\n",
            "{file}:3: labels.fold.tenant.top: input should be greater than 0",
        ),
        (
            "labels: {required: [env]}\nscrape:\n  jobs:\n  - name: a\n    targets: ['h:1']\n    labels: {env: ''}\n",
            "{file}:4: job 'a' has no label 'env', which labels.required asks for",
        ),
    ],
)
def test_a_mistake_names_file_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        config.load(path, {})
    assert caught.value.message.startswith(message.replace("{file}", str(path)))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    "job",
    ["{name: a, targets: ['h:1'], labels: {env: x}}", "{name: a, file_sd: ['x.json']}"],
)
def test_required_labels_may_come_from_the_job_or_from_its_files(tmp_path: Path, job: str) -> None:
    text = f"labels: {{required: [env, job, instance, deployment_zone]}}\nscrape: {{jobs: [{job}]}}\n"
    assert config.load(write(tmp_path, text), {}).labels.required == ("env", "job", "instance", "deployment_zone")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: No such file"):
        config.load(tmp_path / "nowhere.yaml", {})


def test_a_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "loms.yaml"
    path.write_bytes(b"server:\n  host: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8 at byte 16"):
        config.load(path, {})


def test_environment_overrides_the_file_and_is_read_as_yaml(tmp_path: Path) -> None:
    path = write(tmp_path, "store:\n  retention: 1d\n")
    loaded = config.load(path, {"LOMS__STORE__RETENTION": "2d", "LOMS__PROBE__ENABLED": "false", "OTHER": "x"})
    assert loaded.store.retention == 2 * 86_400
    assert loaded.probe.enabled is False


def test_a_wrong_override_names_the_variable() -> None:
    with pytest.raises(ConfigError, match=r"environment variable LOMS__SERVER__PROT: unknown key 'server\.prot'"):
        config.load(None, {"LOMS__SERVER__PROT": "1"})


def test_what_show_prints_is_the_same_configuration_with_secrets_blanked(tmp_path: Path) -> None:
    path = write(
        tmp_path, "server: {token: hunter2}\nscrape:\n  interval: 1m30s\n  jobs: [{name: a, targets: ['h:1']}]\n"
    )
    loaded = config.load(path, {})
    shown = config.show(loaded)
    assert "hunter2" not in shown
    again = config.load(write(tmp_path, shown), {})
    assert again.scrape == loaded.scrape
    assert yaml.safe_load(shown)["scrape"]["interval"] == "1m30s"


def test_of_a_webhook_only_its_host_is_shown_and_of_other_urls_no_credentials(tmp_path: Path) -> None:
    hooks = "[{url: 'https://hooks.example/services/T0/s3cret'}, {url: 'https://own.example'}]"
    path = write(
        tmp_path, f"alerting: {{webhooks: {hooks}}}\nserver: {{external_url: 'https://me:s3cret@own.example/x'}}\n"
    )
    shown = config.show(config.load(path, {}))
    assert "s3cret" not in shown
    tree = yaml.safe_load(shown)
    assert [one["url"] for one in tree["alerting"]["webhooks"]] == ["https://hooks.example/***", "https://own.example"]
    assert tree["server"]["external_url"] == "https://me:***@own.example/x"


@pytest.mark.parametrize(("text", "size"), [("50MiB", 50 * 2**20), ("1GB", 10**9), ("512", 512), ("1.5KiB", 1536)])
def test_sizes(text: str, size: int) -> None:
    assert units.parse_bytes(text) == size
