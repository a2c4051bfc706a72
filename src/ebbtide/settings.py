"""The table of all settings: name, type, default, help. Environment variables, command line and
docs are derived from it.

Not for: the effects of the settings.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from ebbtide.durations import format_duration, parse_duration
from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.logs import LogFormat, LogLevel
from ebbtide.processes import LOCAL_MASTER
from ebbtide.text import shown

ENV_PREFIX: Final = "EBBTIDE_"
_OTHER = re.compile(r"PYTHON|TEST_.*|(?:.*_)?SERVICE_(?:HOST|PORT.*)|(?:.*_)?PORT(?:_[0-9]+_.*)?")
"""Variables that begin like settings and belong to other programs."""
_PROMISED: Final = " Read when a store is made; later, `ebbtide promises` changes it."


def _duration(value: object) -> timedelta:
    """Parses a text with a unit from the environment. A timedelta from code stays as it is."""
    if isinstance(value, timedelta):
        return value
    try:
        return parse_duration(value)
    except EbbtideError as error:
        raise ValueError(error.message) from None


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than zero: write a period such as 30s, 1h or 7d")
    return value


def _web_address(value: str) -> str:
    """Returns an address of the web unchanged. The error does not repeat it: it can be secret."""
    try:
        parts = urlsplit(value)
        is_host = bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        is_host = False
    plain = value.isascii() and value.isprintable() and " " not in value
    if not (is_host and plain and parts.scheme in ("http", "https")):
        raise ValueError("write an address https://HOST/PATH, without a user name and blanks")
    return value


def is_loopback_name(host: str | None) -> bool:
    """Whether a host of a URL, without brackets, is this machine by its loopback address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def tls_address(value: str) -> str:
    """Returns an address of the web that no one on the way can read or change: `https`, or `http`
    on this machine. Raises ValueError."""
    parts = urlsplit(_web_address(value))
    if parts.scheme != "https" and not is_loopback_name(parts.hostname):
        raise ValueError("write https://: plain http is allowed only for a loopback address")
    return value


def _program_line(value: str) -> str:
    """Returns the line unchanged. Raises ValueError if its quotes do not match."""
    if not shlex.split(value):
        raise ValueError("name a program")
    return value


Duration = Annotated[timedelta, BeforeValidator(_duration)]
PositiveDuration = Annotated[timedelta, BeforeValidator(lambda value: _positive(_duration(value)))]
WebAddress = Annotated[str, BeforeValidator(lambda value: _web_address(str(value)))]
TlsAddress = Annotated[str, BeforeValidator(lambda value: tls_address(str(value)))]
ProgramLine = Annotated[str, BeforeValidator(lambda value: _program_line(str(value)))]
_HOW: Final[dict[object, str]] = {
    bool: "write true or false",
    int: "write a whole number",
    int | None: "write a whole number",
    float: "write a number between 0 and 1, such as 0.5",
    float | None: "write a number, such as 0.023",
}


class Settings(BaseSettings):
    """All settings. Arguments override the environment, which overrides the defaults.

    Raises InvalidInput (`invalid_setting`), which names the variable and the valid values.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    store: Path | None = Field(None, description="Directory of the store.")
    database_url: str | None = Field(
        None,
        description="URL of the metadata database, `sqlite:///FILE` or `postgresql://…`. Without "
        "it, the store uses a SQLite file in its directory.",
        repr=False,
    )
    storage_url: str | None = Field(
        None,
        description="Directory or URL below which new repositories get their storage roots. "
        "Without it, `storage` in the store's directory.",
        repr=False,
    )
    secret_key: str | None = Field(
        None,
        description="Key that encrypts the secrets of access keys, 32 bytes in base64url. "
        "Without it, the file `secret.key` in the store's directory, which `init` "
        "makes.",
        repr=False,
    )
    credentials_file: Path | None = Field(
        None,
        description="TOML file with credentials for buckets. Every process reads the variable "
        "itself; executors get the keys from the driver.",
    )
    engine: Literal["spark", "duckdb"] = Field(
        "spark",
        description="Engine of collector runs. `duckdb`: DuckDB in this process, without Java, for "
        "one machine. Without this setting and without a Spark master, also where Java or PySpark "
        "is missing.",
    )
    spark_master: str = Field(
        LOCAL_MASTER,
        description="Spark master of collector runs. `sc://host:port`: a server of Spark "
        "Connect. `none`: the same as `EBBTIDE_ENGINE=duckdb`.",
    )
    spark_conf: str = Field(
        "",
        description="Settings of Spark, `spark.name=value`, separated by line breaks, or by a "
        "comma before the next name. They override `spark-defaults.conf`; `--conf` "
        "overrides them.",
    )
    spark_driver_memory: str = Field(
        "2g",
        description="Memory of Spark's driver. In a container the default is half of its memory, "
        "if that is less.",
    )
    spark_archive: str | None = Field(
        None,
        description="Path or URL of the archive that `ebbtide gc archive` wrote, for executors "
        "on machines without Ebbtide.",
    )
    spark_executors_wait: Duration = Field(
        timedelta(minutes=10),
        description="How long a run waits while its cluster has no executor.",
    )
    grace: Duration = Field(
        timedelta(hours=24), description="No younger file is a candidate for deletion."
    )
    icechunk_grace: Duration = Field(
        timedelta(days=7),
        description="The grace for Icechunk repositories. It must be longer than the longest "
        "session on them.",
    )
    delta_grace: Duration = Field(
        timedelta(days=7),
        description="The grace for Delta tables. It must be longer than the longest job that "
        "writes to one.",
    )
    iceberg_grace: Duration = Field(
        timedelta(days=3),
        description="The grace for Iceberg tables. It must be longer than the longest job that "
        "writes to one.",
    )
    iceberg_root: str | None = Field(
        None,
        description="The folder or bucket that has the tables of Iceberg's catalogs, if it is not "
        "their `warehouse`.",
    )
    iceberg_aliases: str | None = Field(
        None,
        description="Other spellings of locations in Iceberg's metadata: pairs `PREFIX=URL`, "
        "separated by commas.",
    )
    lakefs_endpoint: str | None = Field(
        None, description="Address of the lakeFS server of repositories `lakefs:NAME`."
    )
    lakefs_access_key_id: str | None = Field(
        None, description="Access key of the lakeFS user that runs ask as."
    )
    lakefs_secret_access_key: str | None = Field(
        None, description="Secret of that access key.", repr=False
    )
    lakefs_local_path: str | None = Field(
        None, description="The server's own directory for objects, if it keeps them in one."
    )
    lease_ttl: Duration = Field(
        timedelta(hours=1),
        description="How long signed URLs and locators last, and a ref's former target stays."
        + _PROMISED,
    )
    trash_time: Duration = Field(
        timedelta(days=7),
        description="How long the content of the trash can be restored." + _PROMISED,
    )
    share_max: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of objects or bytes above which a run refuses to delete.",
    )
    write_ttl: PositiveDuration = Field(
        timedelta(hours=24),
        description="How long an upload or commit may take from its first byte to its end.",
    )
    upload_ttl: PositiveDuration = Field(
        timedelta(hours=1),
        description="How long an address for a direct upload can be used, and the upload can be "
        "linked." + _PROMISED,
    )
    prepare_ttl: PositiveDuration = Field(
        timedelta(hours=6),
        description="How long a list of uncommitted data can be read, from its first page to its "
        "last." + _PROMISED,
    )
    reclaim: bool = Field(
        True,
        description="Whether the server deletes objects that were never committed and lost their "
        "last reference.",
    )
    reclaim_interval: PositiveDuration = Field(
        timedelta(seconds=2), description="How often the server looks for such objects."
    )
    reclaim_claim_ttl: PositiveDuration = Field(
        timedelta(minutes=10),
        description="Period after which another process deletes the objects that a process "
        "claimed but did not delete.",
    )
    schedules: bool = Field(True, description="Whether the server starts the runs of schedules.")
    schedule_late_max: PositiveDuration = Field(
        timedelta(hours=6),
        description="How late the run of a schedule may start, if no server was running in time. "
        "If it would be later, the due time is missed.",
    )
    slice_objects_max: int = Field(
        50_000,
        ge=1,
        description="Number of objects in a slice after which a process starts its next slice.",
    )
    slice_age_max: PositiveDuration = Field(
        timedelta(hours=1), description="Age of a slice at which a process starts its next slice."
    )
    range_entries_target: int = Field(
        2048, ge=1, description="Average number of entries in one range file."
    )
    clock_skew_max: PositiveDuration = Field(
        timedelta(minutes=5),
        description="The largest allowed difference between the clocks of host, database and "
        "storage.",
    )
    run_heartbeat: PositiveDuration = Field(
        timedelta(seconds=5), description="How often a run writes a heartbeat."
    )
    run_lease_ttl: PositiveDuration = Field(
        timedelta(seconds=30),
        description="Time without a heartbeat after which another run may take the repository.",
    )
    clean_every: PositiveDuration = Field(
        timedelta(days=7),
        description="A run in mode `auto` is clean if the last clean run is older.",
    )
    sizes: Literal["auto", "all", "candidates"] = Field(
        "auto",
        description="Files in a directory whose size and date a run reads. `all`: all files. "
        "`candidates`: only possible candidates, which is several times as fast. "
        "`auto`: all, up to a million files.",
    )
    delete_versions: bool = Field(
        False,
        description="Whether sweeps, purges and online reclaim also delete the versions that a "
        "bucket of S3 keeps of the files that they delete.",
    )
    tls_certificate: Path | None = Field(
        None,
        description="File with the server's certificate and its chain, PEM. With it, `serve` "
        "speaks HTTPS.",
    )
    tls_key: Path | None = Field(
        None, description="File with the private key of that certificate, PEM, not encrypted."
    )
    server_spark_idle: Duration = Field(
        timedelta(minutes=10),
        description="How long a server keeps Spark's JVM after a run, for the next run.",
    )
    server_repositories: str = Field(
        "",
        description="Repositories elsewhere whose runs the server shows and starts, separated by "
        "blanks: `lakefs:NAME`, `iceberg:CATALOG`, `delta:PATH`, `icechunk:PATH` or "
        "`icechunk:URL`.",
    )
    server_threads: int = Field(
        32, ge=1, description="The most requests that one server works on at a time."
    )
    server_transfers_max: int = Field(
        64, ge=1, description="The most uploads that one server takes at a time; others wait."
    )
    server_upload_max: int = Field(
        5 * 2**40, ge=1, description="The most bytes of one upload through the server."
    )
    server_body_max: int = Field(
        16 * 2**20, ge=1, description="The most bytes of the body of any other request."
    )
    server_header_max: int = Field(
        64 * 2**10, ge=1024, description="The most bytes of a request's line and headers."
    )
    server_list_max: int = Field(
        1000, ge=1, le=5000, description="The most results in one page of a list."
    )
    s3_domain: str | None = Field(
        None,
        description="Domain of the S3 gateway: a request to the host `BUCKET.DOMAIN` is for that "
        "bucket. Without it, only paths name buckets.",
    )
    arvados_repository: str | None = Field(
        None,
        description="Repository that the server shows to clients of Arvados. Without it, the "
        "server has no API of Arvados.",
    )
    session_ttl: PositiveDuration = Field(
        timedelta(hours=12), description="How long a login to the pages lasts."
    )
    oidc_issuer: TlsAddress | None = Field(
        None,
        description="Address of the OpenID Connect issuer for logins to the pages. Without it, "
        "only access keys log in.",
    )
    oidc_client_id: str | None = Field(None, description="Id of this server at the issuer.")
    oidc_client_secret_file: Path | None = Field(
        None,
        description="File with the secret of this server at the issuer. Without it, the server is "
        "a public client.",
    )
    oidc_scopes: str = Field(
        "openid profile email",
        description="Scopes that a login asks for, separated by blanks. `openid` is one of them.",
    )
    oidc_redirect_url: TlsAddress | None = Field(
        None,
        description="Address to which the issuer sends browsers back: "
        "`https://HOST/ui/login/oidc/callback`. Without it, only browsers on the server's machine "
        "can log in by the issuer.",
    )
    oidc_roles_claim: str = Field(
        "groups",
        description="Claim of the ID token that gives roles. `a.b` is the member `b` of the claim "
        "`a`, unless a claim has this whole name.",
    )
    oidc_roles: str = Field(
        "",
        description="Roles by values of that claim, separated by commas or blanks: `VALUE=ROLE` "
        "in the whole store, `VALUE=REPOSITORY:ROLE` in one repository. Quotes enclose "
        "a value with blanks.",
    )
    oidc_name_claim: str = Field(
        "email",
        description="Claim of the ID token with the name that commits and purges record. People "
        "must not be able to choose it.",
    )
    oidc_session_ttl: PositiveDuration = Field(
        timedelta(hours=4),
        description="How long a login by the issuer lasts. Roles are those of the login.",
    )
    import_prefixes: str = Field(
        "s3:// az://",
        description="Directories and single objects, as URLs separated by blanks, that may be "
        "imported through the server.",
    )
    price_gb_month: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Price of one GB (1,000,000,000 bytes) for a month, in any currency. "
        "`what-if` shows costs with it. `EBBTIDE_PRICES` replaces it.",
    )
    prices: Path | None = Field(
        None,
        description="File of prices, in TOML or JSON: a currency, prices of a GiB for a month by "
        "storage class, and of 1,000 requests by kind. Without it, no amounts are shown.",
    )
    run_retention: Duration = Field(
        timedelta(days=365), description="How long the records of collector runs are kept."
    )
    log_format: LogFormat = Field(
        "text",
        description="Form of the lines of the log: `text` for people, or `json`.",
    )
    log_level: LogLevel = Field(
        "warning",
        description="Least level of lines in the log: `debug`, `info`, `warning` or `error`. "
        "`--verbose` makes it `info`.",
    )
    run_metrics_file: Path | None = Field(
        None,
        description="File in which each run leaves its figures for Prometheus. "
        "`--metrics-file` overrides it.",
    )
    run_webhook: WebAddress | None = Field(
        None,
        description="Address, `https://…` or `http://…`, to which the end of each run is posted "
        "as JSON.",
        repr=False,
    )
    run_webhook_secret: str | None = Field(
        None, description="Secret that signs what is posted to the webhook.", repr=False
    )
    run_hook: ProgramLine | None = Field(
        None,
        description="Program with its arguments, without a shell, that is started at the end of "
        "each run with JSON on its stdin.",
    )

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that no log may show, of the settings and of the storage's credentials."""
        found = (
            self.secret_key,
            self.lakefs_secret_access_key,
            self.run_webhook,
            self.run_webhook_secret,
            os.environ.get("AWS_SECRET_ACCESS_KEY"),
            os.environ.get("AWS_SESSION_TOKEN"),
        )
        return tuple(each for each in found if each)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Returns the sources, the first of which has precedence. No file is one of them, and each
        source takes milliseconds."""
        del settings_cls, dotenv_settings, file_secret_settings
        return init_settings, env_settings

    def __init__(self, **values: Any) -> None:  # each field checks its own value
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _invalid_setting(error) from None


def check_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of some settings as `Settings` would have them. The environment and all
    other settings do not matter. Raises as `Settings`."""
    try:
        checked = _some(frozenset(values))(**values)
    except ValidationError as error:
        raise _invalid_setting(error) from None
    return {name: getattr(checked, name) for name in values}


@cache
def _some(names: frozenset[str]) -> type[BaseModel]:
    known = Settings.model_fields
    fields: dict[str, Any] = {n: (known[n].annotation, known[n]) for n in names if n in known}
    return create_model("_Some", __config__=ConfigDict(extra="forbid"), **fields)


def _invalid_setting(error: ValidationError) -> InvalidInput:
    """Returns the error for the first problem. It leaves out the values of URLs and keys, which may
    be secret."""
    problem = error.errors()[0]
    name = str(problem["loc"][0]) if problem["loc"] else "?"
    variable = ENV_PREFIX + name.upper()
    if name not in Settings.model_fields:
        return InvalidInput("invalid_setting", f"there is no setting {shown(name)}")
    if problem["type"] == "value_error":
        reason = str(problem["ctx"]["error"])
    else:
        annotation = Settings.model_fields[name].annotation
        how = _HOW.get(annotation, "write text")
        reason = f"{problem['msg'][0].lower()}{problem['msg'][1:]}: {how}"
        if not name.endswith(("_url", "_key")):
            reason = f"{shown(str(problem['input']))} is refused, {reason}"
    return InvalidInput("invalid_setting", f"{variable}: {reason}", setting=name)


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting as docs and `--help` show it. `default` is a valid text for the variable."""

    name: str
    variable: str
    default: str
    help: str


def list_settings() -> Iterator[SettingInfo]:
    """Yields every setting, in the order of the table."""
    for name, field in Settings.model_fields.items():
        yield SettingInfo(
            name=name,
            variable=ENV_PREFIX + name.upper(),
            default=_shown(field.default),
            help=field.description or "",
        )


def unknown_variables(environment: Iterable[str]) -> list[str]:
    """Returns the names of variables that begin like settings and are none, sorted.

    Variables of the project's own scripts and tests are left out. So are those that Kubernetes
    makes for a service that is called `ebbtide`.
    """
    known = {setting.variable for setting in list_settings()}
    return sorted(
        name
        for name in environment
        if name.startswith(ENV_PREFIX)
        and name not in known
        and not _OTHER.fullmatch(name.removeprefix(ENV_PREFIX))
    )


def _shown(default: object) -> str:
    formats: dict[type, Callable[[Any], str]] = {
        timedelta: format_duration,
        bool: lambda value: str(value).lower(),
    }
    return "" if default is None else formats.get(type(default), str)(default)
