"""The one table of settings: name, type, default, help. Environment, CLI and docs come from it.

Not for: what the settings mean to the code that reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from ebbtide.durations import format_duration, parse_duration
from ebbtide.errors import EbbtideError, InvalidInput
from ebbtide.escaping import shown

ENV_PREFIX: Final = "EBBTIDE_"
_PROMISED: Final = " Counts when a store is made; later, `ebbtide promises` changes it."


def _duration(value: object) -> timedelta:
    """Text with a unit, from the environment; a timedelta, from code."""
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


Duration = Annotated[timedelta, BeforeValidator(_duration)]
PositiveDuration = Annotated[timedelta, BeforeValidator(lambda value: _positive(_duration(value)))]
_HOW: Final[dict[object, str]] = {
    bool: "write true or false",
    int: "write a whole number",
    int | None: "write a whole number",
    float: "write a number between 0 and 1, such as 0.5",
    float | None: "write a number, such as 0.023",
}


class Settings(BaseSettings):
    """Every setting. Arguments win over the environment, which wins over the defaults.

    Raises InvalidInput (`invalid_setting`), naming the variable and what to write.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True
    )

    store: Path | None = Field(None, description="Directory of the store.")
    database_url: str | None = Field(
        None,
        description="Metadata database, `sqlite:///FILE` or `postgresql://…`; without it, a "
        "SQLite file in the store's directory.",
        repr=False,
    )
    storage_url: str | None = Field(
        None,
        description="Where new repositories put their storage roots, a directory or URL; without "
        "it, `storage` in the store's directory.",
        repr=False,
    )
    secret_key: str | None = Field(
        None,
        description="Key by which the secrets of access keys are encrypted, 32 bytes in base64url; "
        "without it, the file `secret.key` in the store's directory, made by `init`.",
        repr=False,
    )
    spark_master: str = Field(
        "local[*]",
        description="Spark master that collector runs use; `sc://host:port`: a server of Spark "
        "Connect; `none`: no Spark, but this process alone, for repositories of some hundred "
        "thousand files.",
    )
    spark_conf: str = Field(
        "",
        description="Settings of Spark's own, `spark.name=value`, separated by line ends or by the "
        "comma before the next; `--conf` comes before them, `spark-defaults.conf` after.",
    )
    spark_driver_memory: str = Field("2g", description="Memory of Spark's driver.")
    spark_archive: str | None = Field(
        None,
        description="Path or URL of the archive that `ebbtide gc archive` wrote, for executors on "
        "machines that lack Ebbtide.",
    )
    spark_executors_wait: Duration = Field(
        timedelta(minutes=10),
        description="How long a run waits for executors of a cluster while there is none.",
    )
    grace: Duration = Field(
        timedelta(hours=24), description="Nothing younger is ever a candidate for deletion."
    )
    icechunk_grace: Duration = Field(
        timedelta(days=7),
        description="The same for Icechunk repositories: longer than any of their sessions lasts.",
    )
    lease_ttl: Duration = Field(
        timedelta(hours=1),
        description="How long a signed URL or locator lasts, and what a ref pointed at stays."
        + _PROMISED,
    )
    trash_time: Duration = Field(
        timedelta(days=7),
        description="How long what was deleted or has expired can be restored." + _PROMISED,
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
        description="How long an address for a direct upload can be uploaded to and linked."
        + _PROMISED,
    )
    prepare_ttl: PositiveDuration = Field(
        timedelta(hours=6),
        description="How long reading what is uncommitted may take from its first page to its "
        "last." + _PROMISED,
    )
    reclaim: bool = Field(
        True,
        description="Whether the server deletes what was never committed and nobody refers to any "
        "more.",
    )
    reclaim_interval: PositiveDuration = Field(
        timedelta(seconds=2), description="How often it looks for such objects."
    )
    reclaim_claim_ttl: PositiveDuration = Field(
        timedelta(minutes=10),
        description="After so long another process deletes what one set out to delete and did not.",
    )
    slice_objects_max: int = Field(
        50_000, ge=1, description="Objects in one slice of a storage root before the next starts."
    )
    slice_age_max: PositiveDuration = Field(
        timedelta(hours=1), description="Age at which a process starts its next slice."
    )
    range_entries_target: int = Field(
        2048, ge=1, description="Average number of entries in one range file."
    )
    clock_skew_max: PositiveDuration = Field(
        timedelta(minutes=5),
        description="How far the clocks of host, database and storage may be apart.",
    )
    run_heartbeat: PositiveDuration = Field(
        timedelta(seconds=5), description="How often a run says that it is alive."
    )
    run_lease_ttl: PositiveDuration = Field(
        timedelta(seconds=30),
        description="Without a heartbeat for so long, the next run may take the repository.",
    )
    clean_every: PositiveDuration = Field(
        timedelta(days=7),
        description="A run that may be incremental is clean when the last clean one is older.",
    )
    sizes: Literal["auto", "all", "candidates"] = Field(
        "auto",
        description="Of which files a run asks a directory for size and date: of all, or, several "
        "times as fast, of those alone that could go (`candidates`). `auto`: of all, up to a "
        "million files.",
    )
    server_spark_idle: Duration = Field(
        timedelta(minutes=10),
        description="How long a server keeps Spark's JVM after the last run, for the next.",
    )
    server_threads: int = Field(
        32, ge=1, description="Requests that one server works on at a time."
    )
    server_transfers_max: int = Field(
        64, ge=1, description="Uploads that one server takes at a time; others wait."
    )
    server_upload_max: int = Field(
        5 * 2**40, ge=1, description="Bytes of one upload through the server."
    )
    server_body_max: int = Field(16 * 2**20, ge=1, description="Bytes of any other request's body.")
    server_header_max: int = Field(
        64 * 2**10, ge=1024, description="Bytes of a request's line and headers."
    )
    server_list_max: int = Field(1000, ge=1, le=5000, description="Results in one page of a list.")
    session_ttl: PositiveDuration = Field(
        timedelta(hours=12), description="How long a login to the pages lasts."
    )
    import_prefixes: str = Field(
        "s3:// gs:// az://",
        description="What URLs of objects may begin with that are staged through the server where "
        "they are, divided by blanks.",
    )
    price_gb_month: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="What a GB (1,000,000,000 bytes) costs for a month, in any currency; `what-if` "
        "reckons with it.",
    )
    run_retention: Duration = Field(
        timedelta(days=365), description="How long the records of collector runs are kept."
    )

    def __init__(self, **values: Any) -> None:  # each is checked by its field
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _invalid_setting(error) from None


def _invalid_setting(error: ValidationError) -> InvalidInput:
    """The first problem. The value itself stays out for URLs: they may hold a password."""
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
    """One setting as docs and `--help` show it; `default` is written as the variable would be."""

    name: str
    variable: str
    default: str
    help: str


def list_settings() -> Iterator[SettingInfo]:
    """Every setting, in the order of the table."""
    for name, field in Settings.model_fields.items():
        yield SettingInfo(
            name=name,
            variable=ENV_PREFIX + name.upper(),
            default=_shown(field.default),
            help=field.description or "",
        )


def _shown(default: object) -> str:
    formats: dict[type, Callable[[Any], str]] = {
        timedelta: format_duration,
        bool: lambda value: str(value).lower(),
    }
    return "" if default is None else formats.get(type(default), str)(default)
